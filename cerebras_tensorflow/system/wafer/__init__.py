"""A model of the wafer: layers, their place on it, and the time of a step. It needs no TensorFlow; all is simulated."""
