"""Reading, writing, converting and retaining checkpoints. Nothing here imports TensorFlow."""
