"""Converts checkpoints and configs between Hugging Face, the PyTorch Model Zoo and our reference implementations."""
