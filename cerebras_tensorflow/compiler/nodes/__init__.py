"""Nodes of the compiled graph: how they are added, and the calls into a weight store."""
