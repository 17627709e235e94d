"""The checkpoints of one model_dir: their state file, retention, writing in the background."""
