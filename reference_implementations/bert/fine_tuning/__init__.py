"""BERT with a head for one task, trained from a pre-training checkpoint."""
