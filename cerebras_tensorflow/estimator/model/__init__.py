"""From the user's model_fn and input_fn to one graph."""
