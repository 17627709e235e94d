"""GPT-J: a decoder with rotary positions and parallel attention and feed-forward."""
