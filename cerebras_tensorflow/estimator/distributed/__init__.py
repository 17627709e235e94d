"""Runs that TensorFlow spreads over processes (TF_CONFIG) or devices (tf.distribute). They are not compiled."""
