"""GPT-3: GPT-2's model in the published sizes of GPT-3."""
