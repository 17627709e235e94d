"""The checkpoints of one model_dir: their list, retention, writing in the background."""
