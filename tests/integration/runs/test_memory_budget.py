"""Under a memory budget, a refusal, cs-plan and a run agree, and the run stays within the budget."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.units import parse_size
from tests.integration.runs.budget_run import WINDOW_BYTES, batch_shape

SCRIPT = Path(__file__).with_name("budget_run.py")
ROUNDING_BYTES = 64_000_000  # the plan rounds the process's memory up to a multiple of this
SMALL = {"network": "dense", "layers": 24, "width": 1024, "batch": 4096}
LANGUAGE = {"network": "language", "layers": 6, "width": 512, "batch": 16, "tied": False}
NETWORKS = {
    "dense": {**SMALL, "layers": 40, "width": 2048},
    "many ops": {**SMALL, "layers": 400, "width": 64},
    "language": LANGUAGE,
    "tied": {**LANGUAGE, "tied": True},
    "loop": {**SMALL, "network": "loop", "layers": 32},
    "micro-batches": {**SMALL, "micro_batch_size": 512},
    "convolutions": {"network": "convolutions", "layers": 6, "width": 256, "batch": 64},
}


def started(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CEREBRAS_EXECUTION_MODE": "weight_streaming"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def planned(folder: Path, budget: str, params: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run cs-plan on the model."""
    (folder / "params.yaml").write_text(json.dumps(params))
    dtype = "int32" if params["network"] == "language" else "float32"
    shape = f"{dtype}:{'x'.join(map(str, batch_shape(params)))}"
    settings = ["--memory_budget", budget, "--weight_store", "file", "--window_bytes", str(WINDOW_BYTES), "--no_rates"]
    settings += ["--micro_batch_size", str(params.get("micro_batch_size", "none"))]
    inputs = ["-p", "params.yaml", "-i", f"x={shape}", "-l", shape, "--json"]
    code = "import sys; from cerebras_tensorflow.planner.cli import main; sys.exit(main())"
    return started(folder, sys.executable, "-c", code, f"{SCRIPT}:model_fn", *inputs, *settings)


def run(folder: Path, budget: str, params: dict[str, Any]) -> dict[str, int]:
    """Train two steps. Return `most_bytes`, or `needed_bytes` if the budget is refused."""
    done = started(folder, sys.executable, str(SCRIPT), "run", budget, json.dumps(params))
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    "params", [SMALL, *(pytest.param(params, marks=pytest.mark.slow, id=name) for name, params in NETWORKS.items())]
)
def test_the_minimum_budget_in_a_refusal_suffices_for_plan_and_run(
    params: dict[str, Any], tmp_path: Path, home: Path
) -> None:
    refused = planned(tmp_path, "1MB", params)
    assert refused.returncode != 0
    match = re.search(r"needs at least ([\d.]+ [MG]B)", refused.stderr)
    assert match, refused.stderr
    budget_bytes = parse_size(match[1]) + ROUNDING_BYTES  # a run has its input pipeline too
    plan = planned(tmp_path, str(budget_bytes), params)
    assert plan.returncode == 0, plan.stderr
    values = json.loads(plan.stdout)
    assert values["memory_budget"] == budget_bytes
    assert values["process_bytes"] + values["planned_peak_bytes"] <= budget_bytes
    most_bytes = run(tmp_path, str(budget_bytes), params)["most_bytes"]
    print(f"needed {match[1]}; planned {values['process_bytes'] + values['planned_peak_bytes']:,}; ran {most_bytes:,}")
    assert most_bytes <= budget_bytes
    if params["network"] == "dense" and "micro_batch_size" not in params:
        weight_bytes = 3 * 4 * params["layers"] * params["width"] ** 2  # with the slots of Adam
        assert values["store_bytes"] > weight_bytes  # values are spilled


@pytest.mark.slow
@pytest.mark.parametrize("params", NETWORKS.values(), ids=NETWORKS)
def test_a_run_refuses_less_than_its_minimum_and_keeps_to_any_larger_budget(
    params: dict[str, Any], tmp_path: Path, home: Path
) -> None:
    needed = run(tmp_path, "1MB", params)["needed_bytes"]
    less = run(tmp_path, str(needed - 2 * ROUNDING_BYTES), params)
    assert abs(less["needed_bytes"] - needed) <= ROUNDING_BYTES
    for budget in (needed + ROUNDING_BYTES, 2 * needed):
        most_bytes = run(tmp_path, str(budget), params)["most_bytes"]
        print(f"needed {needed:,}; budget {budget:,}; ran {most_bytes:,}")
        assert most_bytes <= budget


@pytest.mark.slow
def test_plan_and_refusal_agree_for_gpt_j_6b(tmp_path: Path) -> None:
    """Nothing is trained: the minimum in a refusal is accepted, and 1 % less is refused with the same figure."""
    folder = Path(__file__).parents[3] / "reference_implementations" / "gptj"
    shape = "int32:1x2048"
    inputs = ["--input", f"input_ids={shape}", "--input", f"input_mask={shape}", "--labels", shape]
    settings = ["--weight_store", "file", "--store_dir", str(tmp_path), "--no_rates", "--json"]
    params = ["--params", str(folder / "configs" / "params_continuous_pretraining.yaml")]
    words = [sys.executable, "-m", "cerebras_tensorflow.planner.cli", str(folder / "run.py")]

    def plan(budget_bytes: int) -> subprocess.CompletedProcess[str]:
        return started(tmp_path, *words, *params, *inputs, *settings, "--memory_budget", str(budget_bytes))

    least = re.search(r"needs at least ([\d.]+ GB)", plan(1_000_000_000).stderr)
    assert least
    budget_bytes = parse_size(least[1])
    accepted = plan(budget_bytes)
    assert accepted.returncode == 0, accepted.stderr
    values = json.loads(accepted.stdout)
    assert values["process_bytes"] + values["planned_peak_bytes"] <= budget_bytes
    refused = plan(budget_bytes * 99 // 100)
    assert refused.returncode != 0
    assert f"needs at least {least[1]}" in refused.stderr
