"""Sparse training: the masks of a run, their report, and the objects that choose them."""
