"""BERT with a head for a task of its own, trained on from a pre-training checkpoint."""
