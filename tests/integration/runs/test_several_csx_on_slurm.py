"""Ranks of several CSX on several nodes, which a real srun starts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]

SCRIPT = str(Path(__file__).with_name("toy_run.py"))
GROUP = """
import logging, sys
from pathlib import Path
from cerebras_tensorflow.runtime.collectives import launch
from tests.unit.runtime.collectives.member import numbers

logging.basicConfig(level=logging.INFO)
folder = Path(sys.argv[1])
ranks = launch.start(4, "tests.unit.runtime.collectives.member", folder, 5.0)
print("numbers", numbers(ranks), "on", [path.read_text().split()[0] for path in sorted(folder.glob("rank-[123]"))])
try:
    if sys.argv[2] != "orderly":
        ranks.barrier()
except Exception as error:
    print("error", error)
ranks.close()
"""


def in_allocation(nodes: int, *words: str) -> str:
    """Run a command in an allocation of some nodes; return its output."""
    done = subprocess.run(
        ["salloc", "-N", str(nodes), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("behaviour", "network", "error"),
    [
        ("orderly", "mpi", None),
        (
            "killed",
            "tcp",
            r"error rank 1 on node\d ended without an error: killed, out of memory, or .*\. Its log is .*rank-1.log",
        ),
        ("stops", "tcp", r"error rank 1 on node\d hangs: no sign of life for 5 s\. Its log is .*rank-1.log"),
    ],
)
def test_ranks_on_three_nodes_exchange_bytes_and_a_failing_one_is_named(
    behaviour: str, network: str, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("CEREBRAS_CSX_NETWORK", network)
    (tmp_path / "behaviour").write_text(behaviour)
    words = ("srun", "-N1", "-n1", "--overlap", sys.executable, "-c", GROUP, str(tmp_path), behaviour)
    output = in_allocation(3, *words)
    nodes = re.search(r"The nodes of the CSX: (node\d), \1, (node\d), (node\d)\.", output)
    assert nodes is not None and len(set(nodes.groups())) == 3, output
    assert f"numbers [0, 1, 2, 3] on {list(nodes.groups())}" in output  # of ranks 1 to 3
    found = re.search("^error .*", output, re.MULTILINE)
    assert (found is None) if error is None else (found is not None and re.match(error, found[0])), output


def test_a_launch_in_an_allocation_trains_on_its_four_nodes_with_the_bits_of_one_csx(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("mpi4py")

    def words(executor: str, num_csx: int) -> list[str]:
        options = ("--executor", executor, "--num_csx", str(num_csx), "--weight-servers", "1")
        settings = ("3", "weight_store=memory", "global_batch_size=8", "micro_batch_size=2")
        return argv("csrun_wse", *options, "python-ws", SCRIPT, str(tmp_path / executor), *settings)

    alone = subprocess.run(words("embedded", 1), capture_output=True, text=True, timeout=240)
    output = in_allocation(4, *words("slurm", 4))
    nodes = re.search(r"The nodes of the CSX: (node\d), (node\d), (node\d), (node\d)\.", output)
    assert nodes is not None and len(set(nodes.groups())) == 4, output
    for rank in range(4):
        assert (tmp_path / "slurm" / "csx" / f"rank-{rank}").read_text().startswith(f"{nodes[1 + rank]} ")
    weights = re.search("^weights .*", output, re.MULTILINE)
    assert weights is not None and weights[0] in alone.stdout
