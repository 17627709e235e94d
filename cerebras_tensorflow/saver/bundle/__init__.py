"""TensorFlow V2 checkpoints ("tensor bundles"), read and written without TensorFlow."""
