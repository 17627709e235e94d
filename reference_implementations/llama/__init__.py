"""Llama: a decoder with rotary positions, root-mean-square norms, gated feed-forward and shared key-value heads."""
