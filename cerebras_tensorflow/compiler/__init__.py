"""Compiles the graph of one step to a Program for one execution mode."""
