"""Under a memory budget, a refusal, cs-plan and a run agree, and the run stays within the budget."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cerebras_tensorflow.units import parse_size
from tests.integration.runs.budget_run import BATCH

SCRIPT = Path(__file__).with_name("budget_run.py")
ROUNDING_BYTES = 64_000_000  # the plan rounds the process's memory up to a multiple of this


def started(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CEREBRAS_EXECUTION_MODE": "weight_streaming"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def planned(folder: Path, budget: str, layers: int, width: int) -> subprocess.CompletedProcess[str]:
    """Run cs-plan on the model."""
    (folder / "params.yaml").write_text(f"layers: {layers}\nwidth: {width}\n")
    shape = f"float32:{BATCH}x{width}"
    settings = ["--memory_budget", budget, "--weight_store", "file", "--window_bytes", "16000000", "--no_rates"]
    inputs = ["-p", "params.yaml", "-i", f"x={shape}", "-l", shape, "--json"]
    code = "import sys; from cerebras_tensorflow.planner.cli import main; sys.exit(main())"
    return started(folder, sys.executable, "-c", code, f"{SCRIPT}:model_fn", *inputs, *settings)


@pytest.mark.parametrize(
    ("layers", "width"),
    [(24, 1024), pytest.param(40, 2048, marks=pytest.mark.slow), pytest.param(400, 64, marks=pytest.mark.slow)],
    ids=["small", "large", "many ops"],
)
def test_the_minimum_budget_in_a_refusal_suffices_for_plan_and_run(
    layers: int, width: int, tmp_path: Path, home: Path
) -> None:
    refused = planned(tmp_path, "1MB", layers, width)
    assert refused.returncode != 0
    match = re.search(r"needs at least ([\d.]+ [MG]B)", refused.stderr)
    assert match, refused.stderr
    budget_bytes = parse_size(match[1]) + ROUNDING_BYTES  # a run has its input pipeline too
    plan = planned(tmp_path, str(budget_bytes), layers, width)
    assert plan.returncode == 0, plan.stderr
    values = json.loads(plan.stdout)
    assert values["memory_budget"] == budget_bytes
    assert values["process_bytes"] + values["planned_peak_bytes"] <= budget_bytes
    weight_bytes = 3 * 4 * layers * width * width  # with the slots of Adam
    assert values["store_bytes"] > weight_bytes  # values are spilled
    run = started(tmp_path, sys.executable, str(SCRIPT), "run", str(budget_bytes), str(layers), str(width))
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1])["most_bytes"] <= budget_bytes


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
