"""cs-plan: its command line, its output and its errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from cerebras_tensorflow.estimator.config.cs_config import STORES
from cerebras_tensorflow.perf.chrome_trace import read_chrome_trace
from cerebras_tensorflow.planner import cli

GPTJ = Path(__file__).parents[3] / "reference_implementations" / "gptj"

MODEL = """
import tensorflow as tf
v1 = tf.compat.v1

def helper():
    return None

def model_fn(features, labels, mode, params):
    x = features["x"]
    for layer in range(params["layers"]):
        w = v1.get_variable(f"w{layer}", [1024, 1024])
        x = tf.nn.relu(tf.matmul(x, w))
    loss = tf.reduce_mean(tf.square(x - labels))
    if mode != "train":
        return v1.estimator_spec(mode, loss=loss)
    train_op = v1.train.AdamOptimizer(1e-3).minimize(loss, v1.train.get_global_step())
    return v1.estimator_spec(mode, loss=loss, train_op=train_op)
"""
SHAPES = ["-i", "x=float32:32x1024", "-l", "float32:32x1024", "--memory_budget", "8GB", "--weight_store", "file"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    spec = "from cerebras_tensorflow import CSEstimatorSpec\n"
    (tmp_path / "m.py").write_text(spec + MODEL.replace("v1.estimator_spec", "CSEstimatorSpec"))
    (tmp_path / "p.yaml").write_text("layers: 6\n")
    return f"{tmp_path / 'm.py'}:model_fn"


def run(*words: str) -> int:
    return cli.main(list(words))


def test_the_plan_has_moves_memory_and_times_on_this_machine_and_a_simulated_cs2(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, "-p", str(tmp_path / "p.yaml"), *SHAPES, "--store_dir", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert "0.00629 billion parameters, batch 32, weight_streaming." in text
    assert "no weight was made, no step was run" in text
    written = next(line for line in text.splitlines() if line.startswith("  written"))
    assert "75.5 MB" in written  # 6 weights of 4 MB with two slots each
    assert "This machine (estimated from measured rates" in text and "samples/s" in text
    assert "(simulated: a model of a CS-2, not a measurement)" in text


def test_names_of_json_figures_tell_measured_estimated_and_simulated(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [model, "-p", str(tmp_path / "p.yaml"), *SHAPES, "--store_dir", str(tmp_path), "--json"]
    assert run(*command, "--no_rates") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["store_bytes"] == values["written_bytes"] == 3 * 6 * 4 * 1024**2
    # The two slots of each weight, and the weight itself: once, or also for the forward pass.
    assert values["written_bytes"] < values["read_bytes"] <= values["written_bytes"] + 6 * 4 * 1024**2
    assert values["flops"] == 2 * 32 * 1024**2 * 3 * 6
    assert values["simulated_cs2_step_s"] > 0 and "estimated_step_s" not in values
    assert run(*command) == 0
    timed = json.loads(capsys.readouterr().out)
    assert timed["estimated_step_s"] >= timed["estimated_compute_s"] > 0
    assert set(timed["measured_rates"]) >= {"flops_per_s", "disk_read_bytes_per_s"}


def test_a_model_that_uses_initial_values_has_the_plan_of_one_that_does_not(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "m.py"
    plain = script.read_text()
    own = plain.replace("    if mode", "    calls.append([w.initializer, w.initial_value.shape])\n    if mode", 1)
    figures = []
    for text in (plain, "calls = []\n" + own):
        script.write_text(text)
        assert run(model, "-p", str(tmp_path / "p.yaml"), *SHAPES, "--no_rates", "--json") == 0
        figures.append({**json.loads(capsys.readouterr().out), "process_bytes": 0})
    assert figures[0] == figures[1]


@pytest.mark.parametrize("name", ["own_model", "json"])
def test_a_file_with_a_dataclass_is_planned_whatever_its_name(name: str, tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Size:\n    width: int = 4\n\ndef model_fn(features):\n    return Size()\n"
    (tmp_path / f"{name}.py").write_text(text)
    loaded = sys.modules.get(name)
    function, reference = cli.load_model(str(tmp_path / f"{name}.py:model_fn"))
    assert function(None).width == 4 and reference is None
    assert loaded is None or sys.modules[name] is loaded


def test_a_plan_makes_no_initial_values(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "m.py"
    count = "    print([op.type for op in x.graph.get_operations() if op.name.startswith('w5')])\n"
    script.write_text(script.read_text().replace("    loss =", count + "    loss =", 1))
    assert run(model, "-p", str(tmp_path / "p.yaml"), *SHAPES, "--no_rates", "--json") == 0
    assert capsys.readouterr().out.startswith("['VarHandleOp', 'ReadVariableOp']")


def test_a_step_larger_than_this_machine_gets_options_that_help(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [model, "-p", str(tmp_path / "p.yaml"), *SHAPES[:4], "--weight_store", "memory", "--no_rates"]
    assert run(*command) == 0
    assert "is free on this machine" not in capsys.readouterr().out
    monkeypatch.setattr("cerebras_tensorflow.planner.report.free_memory_bytes", lambda: 10**6)
    assert run(*command) == 0
    text = capsys.readouterr().out
    assert "of memory that is free on this machine. --micro_batch_size auto with --memory_budget SIZE cuts" in text
    assert "the batch of 32" in text and "all weights fit in memory" in text


def test_micro_batches_take_less_memory_and_more_loads(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []
    for words in ([], ["--micro_batch_size", "8"]):
        params = ["-p", str(tmp_path / "p.yaml"), *SHAPES, "--store_dir", str(tmp_path)]
        picture = ["--trace", str(tmp_path / "plan.json")] if words else []
        assert run(model, *params, "--json", *words, *picture) == 0
        plans.append(json.loads(capsys.readouterr().out))
    whole, cut = plans
    assert cut["batch_size"] == whole["batch_size"] == 32
    assert cut["flops"] == whole["flops"]
    assert cut["read_bytes"] >= 2 * whole["read_bytes"]  # four times the weights, and totals of gradients
    (line,) = read_chrome_trace(tmp_path / "plan.json")
    assert sum(span.num_bytes for span in line.spans if span.stream == "load") == cut["read_bytes"]


def test_several_values_give_a_table_with_simulated_columns_apart(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [model, "-p", str(tmp_path / "p.yaml"), *SHAPES[:4], "--weight_store", "file", "--no_rates"]
    varied = ["--batch_size", "8,64", "--num_csx", "1,4", "--memory_budget", "8GB"]
    assert run(*command, *varied) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = next(line for line in lines if line.startswith("batch_size"))
    assert [title.strip() for title in titles.split("  ") if title.strip()][:3] == [
        "batch_size",
        "num_csx",
        "this machine: memory",
    ]
    assert "CS-2: samples/s" in titles and "memory_budget" not in titles
    rows = [line.split()[:2] for line in lines if line[:1].isdigit()]
    assert rows == [["8", "1"], ["8", "4"], ["64", "1"], ["64", "4"]]
    assert run(*command, "--summary") == 0
    text = capsys.readouterr().out
    assert "Model summary" in text and "in the weight store, streamed" in text and "6,291,456 parameters" in text
    assert run(*command, *varied, "--json", "--release", "2.1") == 0
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(value["batch_size"], value["num_csx"]) for value in values] == [(8, 1), (8, 4), (64, 1), (64, 4)]
    speeds = [value["simulated_cs2_samples_per_s"] for value in values]
    assert 3.5 * speeds[0] < speeds[1] <= 4 * speeds[0]
    slow, fast = values[0]["simulated_cs2_samples_per_s_range"]
    assert slow < speeds[0] < fast


def test_a_row_that_does_not_fit_says_why_and_the_others_stay(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [model, "-p", str(tmp_path / "p.yaml"), *SHAPES[:4], "--no_rates", "--weight_store", "file"]
    assert run(*command, "--memory_budget", "9kB,8GB") == 0
    text = capsys.readouterr().out
    assert text.count("does not fit") == 1 and "\n1. memory_budget is 9.0 kB" in text
    assert any(line.startswith("8GB") and " to " in line for line in text.splitlines())


def test_the_planned_schedule_is_written_as_trace_and_picture(model: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, picture = tmp_path / "t.json", tmp_path / "t.png"
    command = [model, "-p", str(tmp_path / "p.yaml"), *SHAPES, "--store_dir", str(tmp_path)]
    assert run(*command, "--trace", str(trace), "--picture", str(picture)) == 0
    (line,) = read_chrome_trace(trace)
    assert not line.is_measured and {span.stream for span in line.spans} == {"load", "compute", "update", "store"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    both = tmp_path / "both.json"
    assert run(*command, "--beside", str(trace), "--trace", str(both)) == 0
    assert len(read_chrome_trace(both)) == 2


def test_options_override_csconfig_and_runconfig_of_the_params_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(
        "layers: 6\ncsconfig: {weight_store: file, memory_budget: 64GB}\nrunconfig: {mode: eval, memory_budget: 9kB}\n"
    )
    command = [model, "-p", str(path), *SHAPES[:4], "--no_rates", "--json"]
    assert run(*command) == 2  # as a run with 9 kB
    assert "memory_budget is 9" in capsys.readouterr().err
    assert run(*command, "--memory_budget", "8GB", "-m", "train") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["store_bytes"] == values["written_bytes"] == 3 * 6 * 4 * 1024**2
    path.write_text("layers: 6\ncsconfig: {weight_store: file}\nrunconfig: {mode: eval}\n")
    assert run(*command) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert (evaluated["store_bytes"], evaluated["written_bytes"]) == (6 * 4 * 1024**2, 0)
    assert run(*command, "--weight_store", "memory") == 0
    assert json.loads(capsys.readouterr().out)["store_bytes"] == 0


def test_a_plan_with_weight_servers_has_no_step_time(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._STORES == STORES
    command = [model, "-p", str(tmp_path / "p.yaml"), *SHAPES[:4], "--weight_store", "servers"]
    assert run(*command, "--json") == 0
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert values["store_bytes"] >= 3 * 6 * 4 * 1024**2 and "estimated_step_s" not in values
    assert printed.err == "cs-plan: warning: rates of weight servers are not measured, so no step time is estimated\n"
    assert run(*command, "--trace", str(tmp_path / "t.json")) == 2
    assert "does not measure those of weight servers" in capsys.readouterr().err


def test_the_batch_of_a_reference_model_comes_from_its_input_fn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(GPTJ / "run.py"), "--no_rates", "--json", "-p"]
    assert run(*command, str(GPTJ / "configs" / "params_tiny.yaml")) == 0
    derived = json.loads(capsys.readouterr().out)
    words = [word for name in ("input_ids", "input_mask") for word in ("-i", f"{name}=int32:8x128")]
    assert run(*command, str(GPTJ / "configs" / "params_tiny.yaml"), *words, "-l", "int32:8x128") == 0
    assert derived == json.loads(capsys.readouterr().out)
    assert derived["batch_size"] == 8
    for section in ("train_input", "runconfig"):
        content = yaml.safe_load((GPTJ / "configs" / "params_tiny.yaml").read_text())
        content["train_input"]["data_file"] = str(GPTJ / "configs" / content["train_input"]["data_file"])
        content.setdefault(section, {})["global_batch_size"] = 4
        path = tmp_path / f"{section}.yaml"
        path.write_text(yaml.safe_dump(content))
        assert run(*command, str(path)) == 0
        assert json.loads(capsys.readouterr().out)["batch_size"] == 4
    content = yaml.safe_load((GPTJ / "configs" / "params_tiny.yaml").read_text())
    content["train_input"]["data_file"] = "nowhere.txt"
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    assert run(*command, str(path)) == 2
    error = capsys.readouterr().err
    assert "has no batch without its data" in error
    assert "--input input_ids=int32:8x128" in error and "--labels int32:8x128" in error


def test_a_reference_model_is_planned_without_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = GPTJ.parent / "bert"
    content = yaml.safe_load((folder / "configs" / "params_base.yaml").read_text())
    content["model"]["num_hidden_layers"] = 1
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    assert run(str(folder / "run.py"), "--no_rates", "--json", "-p", str(path)) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == 256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("csconfig: {weight_stor: file}", "unknown csconfig key 'weight_stor'"),
        ("csconfig: {weight_store: tape}", "weight_store is 'tape': expected one of auto, memory, servers, file"),
        ("csconfig: 3", "section 'csconfig' must hold keys and values, found 3"),
        ("runconfig: {mode: trian}", "runconfig key 'mode' is 'trian'; expected one of train"),
    ],
)
def test_invalid_settings_of_a_params_file_are_refused(
    content: str, message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text(f"layers: 6\n{content}\n")
    assert run(model, "-p", str(tmp_path / "p.yaml"), *SHAPES[:4], "--no_rates") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["missing.py:f", *SHAPES], "there is no file missing.py"),
        (["no.such.module:f", *SHAPES], "there is no module no.such.module"),
        (["{model}:fn", *SHAPES], "has no function 'fn'; it has helper, model_fn"),
        (["{model}", *SHAPES], "does not say which function is its model_fn; write"),
        (["{model}:model_fn"], "describe each tensor of the batch, for example --input input_ids=int32:8x2048"),
        (["{model}:model_fn", "-i", "x=float32:axb"], "'x=float32:axb' is not a tensor; expected [name=]dtype:dims"),
        (["{model}:model_fn", "-i", "x=floaty:3x4"], "'floaty' is not a dtype"),
        (["{model}:model_fn", "-i", "int32:3", "-i", "int32:4"], "each of several --input needs a different name"),
        (["{model}:model_fn", *SHAPES, "-p", "none.yaml"], "cannot read the params file 'none.yaml'"),
        (["{model}:model_fn", *SHAPES, "--no_rates", "--trace", "t"], "--trace and --picture need rates"),
        (["{model}:model_fn", *SHAPES, "--beside", "t"], "--beside needs --trace, --picture or --report"),
        (
            ["{model}:model_fn", *SHAPES, "--num_csx", "1,2", "--trace", "t"],
            "--trace, --picture and --report show one plan",
        ),
        (["{model}:model_fn", *SHAPES, "--store_dir", "nowhere"], "--store_dir nowhere is not a folder"),
    ],
)
def test_bad_input_gives_a_one_line_error_and_exit_code_2(
    words: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model.partition(":")[0]
    assert run(*(word.replace("{model}", path) for word in words)) == 2
    error = capsys.readouterr().err
    assert error.startswith("cs-plan: error: ") and message in error and error.count("\n") == 1
