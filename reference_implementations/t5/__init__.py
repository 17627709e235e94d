"""T5: an encoder and a decoder that fill in missing spans of a text."""
