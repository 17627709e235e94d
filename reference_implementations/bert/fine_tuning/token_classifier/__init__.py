"""BERT with a classifier of each token."""
