"""PyTorch eager with transformers' GPT-2; the operating system swaps what does not fit."""

from __future__ import annotations

from pathlib import Path

import torch
from peers.shape import LEARNING_RATE, Work, batch, measure, sync, work
from transformers import GPT2Config, GPT2LMHeadModel


def build(one: Work) -> GPT2LMHeadModel:
    """Return the model."""
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=one.vocabulary, n_positions=max(1024, one.sequence), n_embd=one.hidden, n_layer=one.layers,
        n_head=one.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def main() -> None:
    """Run the part of the benchmark that the command line asks for."""
    one = work()
    model = build(one)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    path = Path(f"{one.state}.pt")
    if one.what == "resume":
        saved = torch.load(path, mmap=True, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        del saved
    ids = torch.from_numpy(batch(one))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return float(loss)

    def save() -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        sync(path)

    measure(one, step, save)


if __name__ == "__main__":
    main()
