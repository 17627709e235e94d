"""BERT that marks the answer to a question in a passage."""
