"""Floating-point operations of the ops of a graph, with those in functions, branches and loops."""
