"""Layers as functions on variables: dense, norm, attention, the halves of a transformer block."""
