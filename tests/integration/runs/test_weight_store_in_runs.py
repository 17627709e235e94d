"""What happens to the weight store of whole training runs: killed, damaged, shared, deleted, resumed, recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, is_complete

FILE = ("weight_store=file", "memory_budget=8GB")  # with a budget the file is not mapped into memory
SCRIPT = Path(__file__).with_name("toy_run.py")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(home: Path, warm_python: list[str]) -> Iterator[Start]:
    """Starts toy_run.py with a file store; kills runs that are left after the test."""
    begun: list[subprocess.Popen[str]] = []

    def begin(
        model_dir: Path, max_steps: int, *words: str, is_real: bool = False, **variables: str
    ) -> subprocess.Popen[str]:
        environ = {
            **os.environ,
            "CEREBRAS_EXECUTION_MODE": "weight_streaming",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **variables,
        }
        # A warm run has another process id than the process here, and ends a moment later if that one is killed.
        python = [sys.executable] if is_real else warm_python
        arguments = [*python, str(SCRIPT), str(model_dir), str(max_steps), *FILE, *words]
        begun.append(
            subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    return output


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{seen}")


def test_a_killed_run_leaves_complete_checkpoints_and_the_next_run_removes_its_store(
    start: Start, tmp_path: Path
) -> None:
    process = start(tmp_path, 5000, "pause_s=0.01", "epochs=10000", is_real=True)
    wait_for(process, "= 10, loss")
    process.kill()
    finish(process)
    store = tmp_path / "weight_store"
    assert json.loads((store / "owner.json").read_text())["process"] == process.pid
    assert (store / "weights.scratch").exists()
    assert all(is_complete(path) for path in checkpoints_newest_first(tmp_path))
    step = int(checkpoints_newest_first(tmp_path)[0].rpartition("-")[2])
    output = finish(start(tmp_path, step + 3))
    assert "removed the stale weight store" in output and f"process {process.pid}" in output
    assert "Loss for final step" in output
    assert not store.exists()


def test_a_flipped_bit_ends_the_run_names_the_weight_and_keeps_the_checkpoints(start: Start, tmp_path: Path) -> None:
    process = start(tmp_path, 100000, "pause_s=0.01", "epochs=100000", "save_every=100000")
    seen = wait_for(process, "= 10, loss")
    # Flip repeatedly: every step rewrites the weights, so one flip might be overwritten before it is read.
    with open(tmp_path / "weight_store" / "weights.scratch", "r+b", buffering=0) as file:
        while process.poll() is None:
            value = os.pread(file.fileno(), 1, 100)[0]
            os.pwrite(file.fileno(), bytes([value ^ 1]), 100)
    seen += finish(process)
    assert process.returncode != 0
    assert "is damaged in the weight store: bytes 0 to 65536" in seen
    assert "a new run" in seen or "goes on from the last checkpoint" in seen
    assert is_complete(checkpoints_newest_first(tmp_path)[0])
    assert not (tmp_path / "weight_store").exists()


def test_a_flipped_bit_in_a_mapped_file_ends_a_resumed_run(start: Start, tmp_path: Path) -> None:
    finish(start(tmp_path, 5, "memory_budget="))
    process = start(tmp_path, 100000, "pause_s=0.01", "epochs=100000", "save_every=100000", "memory_budget=")
    seen = wait_for(process, "= 20, loss")
    with open(tmp_path / "weight_store" / "weights.scratch", "r+b", buffering=0) as file:
        value = os.pread(file.fileno(), 1, 100)[0]
        os.pwrite(file.fileno(), bytes([value ^ 1]), 100)  # one flip, most likely while the run waits for input
    seen += finish(process)
    assert process.returncode != 0
    assert "Restoring parameters from" in seen
    assert "is damaged in the weight store: bytes 0 to 4096" in seen and "goes on from the last checkpoint" in seen
    assert checkpoints_newest_first(tmp_path)[0].endswith("-5") and is_complete(checkpoints_newest_first(tmp_path)[0])
    assert not (tmp_path / "weight_store").exists()


def test_a_run_whose_store_is_deleted_warns_once_and_finishes(start: Start, tmp_path: Path) -> None:
    process = start(tmp_path, 60, "pause_s=0.01")
    seen = wait_for(process, "= 10, loss")
    shutil.rmtree(tmp_path / "weight_store")
    seen += finish(process)
    assert process.returncode == 0, seen
    assert seen.count("was deleted while this run uses it") == 1
    assert checkpoints_newest_first(tmp_path)[0].endswith("-60")


def test_a_second_run_on_the_same_store_is_refused(start: Start, tmp_path: Path) -> None:
    folder = f"store_dir={tmp_path / 'scratch'}"
    first = start(tmp_path / "first", 100000, folder, "pause_s=0.01", "epochs=100000", is_real=True)
    wait_for(first, "= 10, loss")
    # Use another system: on the same one, the second run would wait in the queue.
    second = start(tmp_path / "second", 10, folder, CEREBRAS_HOME=str(tmp_path / "home"))
    output = finish(second)
    assert second.returncode != 0
    assert f"the weight store {tmp_path / 'scratch'} is in use by another run (process {first.pid}" in output
    assert "weight_store_dir" in output
    first.send_signal(signal.SIGTERM)
    finish(first)
    assert first.returncode == 143
    third = start(tmp_path / "second", 10, folder)
    assert "Loss for final step" in finish(third)


@pytest.mark.parametrize("form", ["tensorflow", "h5"])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(start: Start, tmp_path: Path, form: str) -> None:
    unbroken = finish(start(tmp_path / "unbroken", 12, f"format={form}"))
    finish(start(tmp_path / "broken", 6, f"format={form}"))
    resumed = finish(start(tmp_path / "broken", 12, f"format={form}"))
    assert "Restoring parameters from" in resumed
    weights = [line for line in unbroken.splitlines() if line.startswith("weights")]
    assert weights and weights == [line for line in resumed.splitlines() if line.startswith("weights")]


def test_a_recorded_step_is_a_trace_with_every_stream(start: Start, tmp_path: Path) -> None:
    output = finish(start(tmp_path, 5, CEREBRAS_TRACE_STEP="3"))
    path = tmp_path / "trace" / "step_3.json"
    assert f"Trace of step 3: {path}" in output
    events = json.loads(path.read_text())["traceEvents"]
    kinds = {event["cat"] for event in events if event["ph"] == "X"}
    assert kinds == {"step", "layers", "load", "compute", "update", "store"}
    moved = {event["name"] for event in events if event["ph"] == "X" and event["cat"] == "store"}
    assert {"wide", "narrow", "wide/Adam", "narrow/Adam_1"} <= moved
    updates = {event["name"] for event in events if event["ph"] == "X" and event["cat"] == "update"}
    assert any("update_wide" in name or "update_narrow" in name for name in updates), "the weight is named"
    assert any(event["name"] == "process_name" and event["args"]["name"] == "step 3: measured" for event in events)
    memory = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert memory and min(memory) > 50_000_000
