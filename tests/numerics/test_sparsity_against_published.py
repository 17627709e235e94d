"""Our masks are those of the published package (cerebras_pytorch 2.6, on a CPU) from the same weights, gradients."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.sparsity import DynamicSparsityAlgorithm, configure

pytestmark = pytest.mark.interop
pytest.importorskip("torch")

# Trains a small model with AdamW. Writes the first masks, and what each update of masks takes and returns.
PEER = """
import json, sys, warnings
warnings.simplefilter("ignore")
from unittest.mock import MagicMock

sys.modules["cerebras.pytorch.lib.cerebras_pytorch_lib"] = MagicMock()
import numpy as np, torch
import cerebras.pytorch as cs

backend = cs.backend("CPU")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
record = {f"{name}/start": p.detach().numpy().copy() for name, p in model.named_parameters()}
optimizer = cs.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
sparsity = cs.sparse.configure(json.loads(sys.argv[1]))
net = cs.compile(model, backend)
model.apply(sparsity)
optimizer.apply(sparsity)
sparsity.initialize()
record.update({f"{name[:-5]}/first": b.numpy().copy() for name, b in model.named_buffers() if name.endswith("_mask")})
algorithm = sparsity[0]
update_mask = getattr(algorithm, "update_mask", None)

def recorded(p, mask, level):
    before = mask.numpy().copy()
    new = update_mask(p, mask, level)
    if bool(algorithm.is_update_step):
        name = next(name for name, other in model.named_parameters() if other is p or other.data_ptr() == p.data_ptr())
        values = {"p": p.detach(), "mask": torch.tensor(before), "level": level, "new": new}
        values["gradient"] = getattr(algorithm, "_dense_grads", {}).get(p, torch.zeros(()))
        record.update({f"{name}/{int(algorithm.step)}/{key}": np.array(value) for key, value in values.items()})
    return new

algorithm.update_mask = recorded
for _ in range(8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(torch.randn(8, 16)), torch.randint(4, (8,))).backward()
    if hasattr(algorithm, "drop_fraction"):
        algorithm.drop_fraction.cache_clear()  # on a CPU it would keep its first value
    optimizer.step()
np.savez(sys.argv[2], **record)
"""
SHAPES = {"0.weight": (32, 16), "0.bias": (32,), "2.weight": (4, 32), "2.bias": (4,)}
CONFIGS: dict[str, Any] = {
    "static": {"sparsity": 0.6, "init_method": "topk"},
    "checkerboard": {"sparsity": 0.75, "init_method": "checkerboard"},
    "gmp": {
        "algorithm": "gmp", "init_method": "topk", "update": {"freq": 3},
        "schedule": {"type": "exp", "init": 0.1, "gamma": -0.3, "final": 0.9},
    },
    "rigl": {
        "algorithm": "rigl", "sparsity": 0.75, "init_method": "topk", "update": {"freq": 2, "stop": 7},
        "drop_fraction": {"type": "cosine", "init": 0.4, "half_period": 8},
    },
    "rigl, by groups": {
        "algorithm": "rigl", "sparsity": 0.5, "init_method": "topk", "update": {"freq": 2},
        "balance_out_groups": 4,
    },
}  # fmt: skip


def ours(name: str) -> Any:
    config = dict(CONFIGS[name])
    if "balance_out_groups" in config:  # PyTorch's weights are (out, in), ours are (in, out)
        config["balance_in_groups"] = config.pop("balance_out_groups")
    groups = configure(config)
    assert groups is not None
    return groups.choose(SHAPES)


@pytest.mark.parametrize("name", CONFIGS)
def test_masks_are_those_of_the_published_package(name: str, published_python: str, tmp_path: Path) -> None:
    subprocess.run([published_python, "-c", PEER, json.dumps(CONFIGS[name]), tmp_path / "record.npz"], check=True)
    record = dict(np.load(tmp_path / "record.npz"))
    chosen = ours(name)
    assert set(chosen) == {"0.weight", "2.weight"}
    updates = 0
    for weight, algorithm in chosen.items():
        first = algorithm.first_mask(weight, record[f"{weight}/start"])
        np.testing.assert_array_equal(first, record[f"{weight}/first"], weight)
        for step in range(1, 9):
            key = f"{weight}/{step}"
            is_due = isinstance(algorithm, DynamicSparsityAlgorithm) and step in algorithm.update_steps
            assert (f"{key}/new" in record) == is_due
            if is_due:
                updates += 1
                assert algorithm.target(step) == pytest.approx(record[f"{key}/level"], rel=1e-6)
                taken = [record[f"{key}/{each}"] for each in ("p", "mask")]
                new = algorithm.next_mask(weight, *taken, step, record[f"{key}/gradient"])
                np.testing.assert_array_equal(new, record[f"{key}/new"], key)
    assert updates == {"gmp": 4, "rigl": 6, "rigl, by groups": 8}.get(name, 0)
