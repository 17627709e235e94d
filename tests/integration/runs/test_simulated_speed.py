"""One figure for the simulated speed of a run, whichever command gives it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cerebras_tensorflow.planner.cli import main as cs_plan

FOLDER = Path(__file__).parents[3] / "reference_implementations" / "fc_mnist"


def output_of(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text, re.M)
    assert found is not None, text
    return float(found[1])


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("mode", "num_csx"), [("pipelined", 1), ("weight_streaming", 1), ("weight_streaming", 2)])
def test_all_commands_give_the_same_simulated_speed(
    mode: str,
    num_csx: int,
    argv: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
    content = yaml.safe_load((FOLDER / "configs" / "params_tiny.yaml").read_text())
    content["runconfig"]["num_csx"] = num_csx
    content["train_input"]["data_file"] = str(FOLDER.parent / "data" / "digits.csv.gz")
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(content))
    script, model_dir = str(FOLDER / "run.py"), tmp_path / "model_dir"
    command = [sys.executable, script, "--params", str(params), "--mode", "train", "--model_dir", str(model_dir)]

    def report() -> float:
        (path,) = model_dir.rglob("compile_report.txt")
        return figure(r"^Samples/s: ([0-9.]+)$", path.read_text())

    analyzed = output_of(argv("cs_input_analyzer", *command, "--compile_only"))
    figures = {"cs_input_analyzer": figure(r"system \(simulated\): ([0-9.]+)", analyzed), "report": report()}
    validated = output_of([*command, "--validate_only"])
    figures["--validate_only"] = figure(r"on the CS-2 \(simulated\): ([0-9.e+]+)\.", validated)
    assert cs_plan([script, "-p", str(params), "--execution_mode", mode, "--no_rates", "--json"]) == 0
    figures["cs-plan"] = json.loads(capsys.readouterr().out)["simulated_cs2_samples_per_s"]
    if num_csx == 1:
        for path in model_dir.rglob("compile_report.txt"):
            path.write_text("Samples/s: 1.0\n")  # as another release left it in the cache
        output_of([*command, "--max_steps", "2"])
        performance = json.loads((model_dir / "performance" / "performance.json").read_text())
        figures["est_samples_per_sec"] = performance["est_samples_per_sec"]
        figures["report after a run"] = report()
    expected = figures["report"]
    assert figures == {name: pytest.approx(expected, rel=1e-3) for name in figures}
