"""SavedModels and the exporters that write them during training."""
