"""Models that run on this library, each folder a model: run.py, model.py, data.py and configs/."""
