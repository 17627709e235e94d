"""Checkpoints and configs of Hugging Face, the PyTorch Model Zoo and our reference implementations into each other."""
