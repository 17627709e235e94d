"""GPT-J's batches: bytes of a text, or tokens from HDF5 or TFRecord files."""

from reference_implementations.common.data.language_model import eval_input_fn, train_input_fn

__all__ = ["eval_input_fn", "train_input_fn"]
