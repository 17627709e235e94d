"""Training runs that are killed, interrupted or given bad input lose no checkpoint and report what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, is_complete

SCRIPT = Path(__file__).with_name("toy_run.py")
MODES = ["pipelined", "weight_streaming"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(home: Path, warm_python: list[str]) -> Start:
    """Starts toy_run.py."""

    def begin(mode: str, model_dir: Path, max_steps: int, *words: str, verbosity: str = "3") -> subprocess.Popen[str]:
        environ = {**os.environ, "CEREBRAS_EXECUTION_MODE": mode, "TF_CPP_MIN_LOG_LEVEL": verbosity}
        # TensorFlow reads the variable when it is imported.
        python = warm_python if verbosity == "3" else [sys.executable]
        arguments = [*python, str(SCRIPT), str(model_dir), str(max_steps), *words]
        return subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return begin


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    return output


def outcome(output: str) -> list[str]:
    """The lines with the final loss and weights."""
    return [line for line in output.splitlines() if "Loss for final step" in line or line.startswith("weights")]


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{seen}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_saves_and_sets_the_exit_status(
    start: Start, tmp_path: Path, mode: str, number: int, status: int
) -> None:
    process = start(mode, tmp_path, 5000, "epochs=10000", "pause_s=0.01", "save_every=100000")
    seen = wait_for(process, "= 10, loss" if mode == "weight_streaming" else "step 10: loss")
    process.send_signal(number)
    seen += finish(process)
    assert process.returncode == status, seen
    newest = checkpoints_newest_first(tmp_path)[0]
    assert is_complete(newest)
    assert int(newest.rpartition("-")[2]) >= 10
    assert "Traceback" not in seen


def test_a_second_signal_stops_at_once_and_leaves_no_partial_checkpoint(start: Start, tmp_path: Path) -> None:
    process = start("weight_streaming", tmp_path, 100000, "epochs=100000", "pause_s=0.001", "save_every=1")
    seen = wait_for(process, "Saving checkpoint at global step 5")
    process.send_signal(signal.SIGTERM)
    seen += wait_for(process, "SIGTERM received")
    process.send_signal(signal.SIGTERM)
    seen += finish(process)
    assert process.returncode == 143, seen
    assert not list(tmp_path.glob(".*.partial"))
    assert all(is_complete(path) for path in checkpoints_newest_first(tmp_path))


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(start: Start, tmp_path: Path) -> None:
    finish(start("weight_streaming", tmp_path, 12))
    (tmp_path / "model-ckpt-12.data-00000-of-00001").write_bytes(b"half")
    output = finish(start("weight_streaming", tmp_path, 14))
    assert "model-ckpt-12 is damaged or incomplete; falling back" in output
    assert "Restoring parameters from" in output and "model-ckpt-10" in output
    assert outcome(output)


def test_a_flipped_bit_in_a_checkpoint_is_found_while_loading(start: Start, tmp_path: Path) -> None:
    finish(start("pipelined", tmp_path, 12))
    path = tmp_path / "model.ckpt-12.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    output = finish(start("pipelined", tmp_path, 14))
    assert "model.ckpt-12" in output and "falling back to the checkpoint before it" in output
    # The input also continues from the older step: the run ends as if step 12 had never been saved.
    unbroken = finish(start("pipelined", tmp_path / "unbroken", 14))
    assert outcome(output) == outcome(unbroken) and len(outcome(output)) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_is_not_a_number_stops_at_its_step_and_keeps_the_last_checkpoint(
    start: Start, tmp_path: Path, mode: str
) -> None:
    process = start(mode, tmp_path, 40, "nan_at=17")
    output = finish(process)
    assert process.returncode != 0
    assert "the loss of step 17 is nan" in output
    assert "-15. Lower the learning rate" in output
    assert checkpoints_newest_first(tmp_path)[0].endswith("-15")


@pytest.mark.parametrize("mode", MODES)
def test_input_that_ends_early_is_logged_and_the_last_step_saved(start: Start, tmp_path: Path, mode: str) -> None:
    process = start(mode, tmp_path, 500, "epochs=1")
    output = finish(process)
    assert process.returncode == 0, output
    assert "The input ended at step 40, before step 500" in output
    assert checkpoints_newest_first(tmp_path)[0].endswith("-40")


def test_the_error_of_a_model_fn_without_result_names_the_expected_type(start: Start, tmp_path: Path) -> None:
    output = finish(start("weight_streaming", tmp_path, 5, "returns=nothing"))
    assert "model_fn should return an EstimatorSpec. It returned None" in output


def test_the_error_of_an_unknown_address_says_how_to_register_it(start: Start, tmp_path: Path) -> None:
    output = finish(start("weight_streaming", tmp_path, 5, "cs_ip=10.9.8.7:9000"))
    assert "no simulated CS-2 answers at 10.9.8.7:9000" in output
    assert "cs-system create" in output and "leave out --cs_ip" in output


def test_a_finished_run_logs_that_it_skips_training_and_exits_with_0(start: Start, tmp_path: Path) -> None:
    finish(start("pipelined", tmp_path, 6))
    process = start("pipelined", tmp_path, 6)
    output = finish(process)
    assert process.returncode == 0
    assert "Skipping training since max_steps has already saved" in output


def test_a_second_run_reuses_the_compiled_program(start: Start, tmp_path: Path) -> None:
    finish(start("weight_streaming", tmp_path, 6))
    assert "Cached compilation found for this model configuration" in finish(start("weight_streaming", tmp_path, 8))
    assert len(list(tmp_path.glob("tfcs_*"))) == 1


def test_the_log_has_the_lines_of_the_quickstart_in_order(start: Start, tmp_path: Path) -> None:
    lines = finish(start("weight_streaming", tmp_path, 10)).splitlines()
    expected = [
        f"INFO:tensorflow:Checkpoints and summaries will be saved in: {tmp_path}",
        "INFO:tensorflow:Running the TF Client",
        "INFO:tensorflow:Calling model_fn.",
        "INFO:tensorflow:Done calling model_fn.",
        "INFO:tensorflow:Completed weight initialization on CPU in: ",
        "INFO:tensorflow:Calling model_fn.",
        "INFO:tensorflow:Loading CPU pre-initialized weights took ",
        "INFO:tensorflow:Saving checkpoint at global step 0",
        "INFO:tensorflow:global_step = 1, loss = ",
        "INFO:tensorflow:global_step = 2, loss = ",
        "INFO:tensorflow:global_step = 10, loss = ",
        "INFO:tensorflow:Saving checkpoint at global step 10",
        "INFO:tensorflow:Training finished with 80 samples in ",
        "INFO:tensorflow:Loss for final step: ",
    ]
    remaining = iter(lines)
    for wanted in expected:
        assert any(line.startswith(wanted) for line in remaining), wanted


def test_use_xla_compiles_in_pipelined_mode_only(start: Start, tmp_path: Path) -> None:
    process = start("pipelined", tmp_path / "xla", 10, "use_xla=1", verbosity="0")
    output = finish(process)
    assert process.returncode == 0, output
    assert "Compiled cluster using XLA!" in output
    assert "use_xla is ignored" in finish(start("weight_streaming", tmp_path / "streamed", 2, "use_xla=1"))
