"""DeepSpeed ZeRO-3 with transformers' GPT-2: parameters and Adam's state on the disk, computation on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
from peers.shape import LEARNING_RATE, Work, batch, measure, work
from transformers import GPT2Config, GPT2LMHeadModel


def settings(one: Work, folder: Path) -> dict[str, Any]:
    """Return DeepSpeed's config: ZeRO stage 3, parameters and optimizer on the disk.

    A buffer must hold the largest weight.
    """
    largest = max(one.vocabulary * one.hidden, 4 * one.hidden * one.hidden) + 2**20
    swap = {"device": "nvme", "nvme_path": str(folder), "pin_memory": False}
    return {
        "train_batch_size": one.batch,
        "optimizer": {"type": "Adam", "params": {"lr": LEARNING_RATE, "torch_adam": False, "adam_w_mode": False}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**swap, "buffer_count": 3, "buffer_size": largest},
            "offload_optimizer": {**swap, "buffer_count": 4},
            "sub_group_size": largest,
            "stage3_prefetch_bucket_size": 0,
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "single_submit": False, "overlap_events": True},
    }


def main() -> None:
    """Run the part of the benchmark that the command line asks for."""
    one = work()
    os.environ |= {
        "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
    }  # fmt: skip
    deepspeed.init_distributed("gloo")
    folder = Path(f"{one.state}.swap_{one.what}")
    folder.mkdir(parents=True)
    options = settings(one, folder)
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=one.vocabulary, n_positions=max(1024, one.sequence), n_embd=one.hidden, n_layer=one.layers,
        n_head=one.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    with deepspeed.zero.Init(config_dict_or_path=options):
        model = GPT2LMHeadModel(config)
    noise = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():  # zero.Init has no use for the library's own initialisation
        with deepspeed.zero.GatheredParameters(weight, modifier_rank=0):
            if weight.dim() > 1:
                weight.data.normal_(0.0, 0.02, generator=noise)
            else:
                weight.data.fill_(float(".ln_" in name and name.endswith("weight")))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=options)
    path = f"{one.state}.deepspeed"
    if one.what == "resume":
        engine.load_checkpoint(path)
    ids = torch.from_numpy(batch(one))

    def step() -> float:
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return float(loss)

    def save() -> None:
        engine.save_checkpoint(path)
        os.sync()

    measure(one, step, save)


if __name__ == "__main__":
    main()
