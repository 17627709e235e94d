"""BERT with a classifier of whole pieces of text."""
