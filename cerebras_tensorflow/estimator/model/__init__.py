"""Calls of model_fn and input_fn, and the graphs that they make."""
