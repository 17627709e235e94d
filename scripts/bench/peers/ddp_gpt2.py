"""PyTorch's DistributedDataParallel with gloo: the processes of torchrun share the batch.

Process 0 prints the time of a step [s].
"""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist
from peers.pytorch_gpt2 import build
from peers.shape import LEARNING_RATE, batch, timed, work
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train as one of the processes; with one process, without the wrapper."""
    one = work()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = build(one)
    shared = DistributedDataParallel(model) if size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    share = one.batch // size
    ids = torch.from_numpy(batch(one)[rank * share : (rank + 1) * share])

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = shared(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return float(loss)

    times = [timed(step)[0] for _ in range(one.steps)]
    dist.destroy_process_group()
    if rank == 0:
        print(statistics.median(times[1:]))


if __name__ == "__main__":
    main()
