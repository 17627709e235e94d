"""Model code and scripts in the style of public TensorFlow models for Cerebras systems, releases 1.2 to 1.8.

Ours, written from the list of calls that such code makes. Nothing here may know that the port exists.
"""
