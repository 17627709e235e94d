"""TensorFlow V2 checkpoints ("tensor bundles") without TensorFlow: the reader and the writer under one name."""

from cerebras_tensorflow.saver.bundle_reader import BundleReader
from cerebras_tensorflow.saver.bundle_writer import BundleWriter

__all__ = ["BundleReader", "BundleWriter"]
