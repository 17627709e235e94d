"""A small fully connected classifier of handwritten digits."""
