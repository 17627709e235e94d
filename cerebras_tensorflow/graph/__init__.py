"""Analysis and rewriting of the TensorFlow graph of one step."""
