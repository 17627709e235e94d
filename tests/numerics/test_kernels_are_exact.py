"""Only the known kernels of TensorFlow give results that depend on timing or on the number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.numerics.cpu_load import cpu_load

# Each of these is replaced (graph/sums.py, graph/scatters.py), or named in a warning (graph/exactness.py).
KNOWN = {
    "AddN", "AccumulateNV2", "ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterMul", "ResourceScatterDiv",
    "ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradV2",
    "ParallelDynamicStitch", "Bincount", "DenseBincount", "SparseBincount",
}  # fmt: skip
REPEATS = 16


def results(threads: int) -> dict[str, list[str]]:
    """Results of all kernels in a process with so many threads for each op."""
    command = [sys.executable, "-m", "tests.numerics.kernels", str(threads), str(REPEATS), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."})
    return dict(json.loads(done.stdout.split("RESULTS", 1)[1]))


@pytest.mark.slow
def test_only_known_kernels_depend_on_timing_and_threads() -> None:
    with cpu_load(most_s=1200):
        outcomes = [results(threads) for threads in (1, 2, 3, 8)]
    different = {name for name in outcomes[0] if len({value for outcome in outcomes for value in outcome[name]}) > 1}
    failed = {name: value for name, value in outcomes[0].items() if "Error" in value[0]}
    assert not failed
    assert different <= KNOWN
    assert "ResourceScatterAdd" in different, "the inputs show the order of a sum"
