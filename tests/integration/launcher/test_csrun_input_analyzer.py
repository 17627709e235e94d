"""cs_input_analyzer on a real pipeline."""

from __future__ import annotations

import os
import re
from pathlib import Path

from csrun.input_analyzer import cpu_counts

SCRIPT = """
import tensorflow as tf
from cerebras_tensorflow.runtime.input_workers import chief as input_workers
with tf.Graph().as_default():
    input_workers.distributed(tf.data.Dataset.range(1000).map(lambda x: (x, x + 1)).batch(4))
"""


def test_the_report_has_the_measured_rate_and_a_recommendation(run, tmp_path: Path) -> None:
    folder = tmp_path / "model_dir" / "tfcs_1"
    folder.mkdir(parents=True)
    (folder / "compile_report.txt").write_text("Estimated Overall Performance\n---\nSamples/s: 1000000.0\n")
    words = ("python", "-c", SCRIPT, "--model_dir", str(tmp_path / "model_dir"))
    done = run("cs_input_analyzer", "--available-nodes", "3", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Starting input performance analysis and resource estimator"
    assert lines[-1] == "Finished Analysis"
    measured = re.findall(r"^  with (\d+) CPU\(s\): ([0-9.]+) samples/s \(800 samples", done.stdout, re.M)
    assert [int(cpus) for cpus, _ in measured] == cpu_counts(len(os.sched_getaffinity(0)))
    assert "Estimated rate of the system (simulated): 1000000.0 samples/s" in done.stdout
    workers = int(re.search(r"estimated rate \(simulated\): (\d+)", done.stdout).group(1))
    cpus = re.search(r"Recommended: --total-nodes 3 --tasks-per-node \d+ --cpus-per-task (\d+)", done.stdout).group(1)
    rate = float(dict(measured)[cpus])
    assert abs(workers - 1_000_000 / rate) <= 1 + workers * 0.01


def test_a_command_without_a_pipeline_is_reported(run) -> None:
    done = run("cs_input_analyzer", "true")
    assert done.returncode == 3
    assert "did not reach its input pipeline" in done.stderr
