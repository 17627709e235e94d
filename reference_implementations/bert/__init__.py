"""BERT: an encoder trained to fill in masked tokens and to tell whether two texts follow each other."""
