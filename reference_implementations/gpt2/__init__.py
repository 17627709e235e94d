"""GPT-2: a decoder with learned positions and norms before attention and feed-forward."""
