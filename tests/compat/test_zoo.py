"""Scripts in the style of the public model codes of releases 1.2 to 1.8, started as their users started them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import cerebras_tensorflow
from cerebras_tensorflow.system import registry
from tests.compat.zoo import data

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
WHEEL = ROOT / "cerebras_tensorflow" / "compat" / "roots" / "wheel"
ZOO = Path(__file__).parent / "zoo"
LAUNCH = "import sys; from csrun.cli import csrun_wse; sys.exit(csrun_wse())"
MODELS = ("fc_mnist", "gpt2", "gptj", "bert", "classifier", "token_classifier", "qa", "linformer", "t5", "transformer")
BOTH = ("fc_mnist", "gpt2", "gptj")
"""The model codes run these models with both execution strategies."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of all models."""
    path = tmp_path_factory.mktemp("zoo")
    data.write_records(str(path))
    data.write_text(str(path))
    return path


class Zoo:
    """Starts the scripts of a release and returns their output."""

    def __init__(self, folder: Path, tmp_path: Path) -> None:
        self.folder = folder
        self.model_dir = tmp_path / "model"
        self.home = tmp_path / "home"

    def csrun(self, interpreter: str, model: str, *words: str, release: str = "1_6", **environ: str) -> str:
        """1.2 to 1.7: csrun_wse python run.py, or python-ws."""
        script = [sys.executable, "-c", LAUNCH, interpreter, str(ZOO / f"run_{release}.py")]
        given = [] if release == "1_2" else ["-p", model, "-d", str(self.folder)]
        return self._run([*script, *given, "-o", str(self.model_dir), *words], [ROOT], environ)

    def wheel(self, model: str, *words: str) -> str:
        """1.8: python run.py TARGET."""
        target = [word for word in words[:2] if word in ("CPU", "CSX", "pipeline", "weight_streaming")]
        options = words[len(target) :]
        script = [sys.executable, str(ZOO / "run_1_8.py"), *target]
        own = ["-p", model, "-d", str(self.folder), "-o", str(self.model_dir)]
        return self._run([*script, *own, *options], [WHEEL, ROOT], {})

    def appliance(self, model: str, *words: str) -> str:
        """1.6 and 1.7: python run-appliance.py."""
        script = [sys.executable, str(ZOO / "run_appliance_1_6.py"), "--params", model]
        own = ["--credentials_path", "x", "--modelzoo_mount_path", "y", "--data_mount_path", str(self.folder)]
        return self._run([*script, *own, "--model_dir", str(self.model_dir), *words], [WHEEL, ROOT], {})

    def _run(self, words: list[str], path: list[Path], more: dict[str, str]) -> str:
        environ = {key: value for key, value in os.environ.items() if key not in ("TF_USE_LEGACY_KERAS", "TF_CONFIG")}
        environ.update(
            PYTHONPATH=os.pathsep.join(map(str, path)), CEREBRAS_HOME=str(self.home), TF_CPP_MIN_LOG_LEVEL="3", **more
        )
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.model_dir.iterdir() if "ckpt" in path.name)


@pytest.fixture
def zoo(folder: Path, tmp_path: Path) -> Zoo:
    return Zoo(folder, tmp_path)


def losses(text: str) -> list[str]:
    """The losses that a run logs, in order."""
    return re.findall(r"loss = ([-.\de+]+)", text)


def results(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("RESULT")]


# one run of each release in the default run of the tests


def test_1_6_trains_and_evaluates_gpt2(zoo: Zoo) -> None:
    text = zoo.csrun("python", "gpt2", "-m", "train", "--max_steps", "4")
    assert "DONE model.ckpt-4 False" in text
    assert text.count("stack_params: noted, without effect on the simulated system") == 1
    text = zoo.csrun("python", "gpt2", "-m", "eval", "--eval_steps", "2")
    assert results(text) == ["RESULT 4 ['eval/accuracy', 'eval/lm_perplexity', 'global_step', 'loss']"]


def test_1_7_trains_gpt2_in_weight_streaming_mode(zoo: Zoo) -> None:
    assert "DONE model-ckpt-3 True" in zoo.csrun("python-ws", "gpt2", "-m", "train", "--max_steps", "3", release="1_7")


def test_1_8_trains_gpt2_on_the_system(zoo: Zoo) -> None:
    text = zoo.wheel("gpt2", "CSX", "weight_streaming", "-m", "train_and_eval", "--max_steps", "3", "--eval_steps", "2")
    names = "['eval/accuracy', 'eval/bits_per_byte', 'eval/lm_perplexity', 'global_step', 'loss']"
    assert results(text) == [f"RESULT 3 {names}"]


# each model, release and mode


@pytest.mark.slow
@pytest.mark.parametrize("model", [*MODELS, "unet"])
def test_1_6_trains_and_evaluates_in_pipelined_mode(zoo: Zoo, model: str) -> None:
    assert "DONE model.ckpt-4 False" in zoo.csrun("python", model, "-m", "train", "--max_steps", "4")
    # keep_checkpoint_max is 0: as in TensorFlow, the state then lists the newest checkpoint only.
    text = zoo.csrun("python", model, "-m", "eval_all")
    assert [line.split()[1] for line in results(text)] == ["4"]
    # The resumed run continues the input where the last run ended.
    text = zoo.csrun("python", model, "-m", "train", "--max_steps", "5")
    assert "SKIP 4" in text
    assert "DONE model.ckpt-5 False" in text


@pytest.mark.slow
@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("release", ["1_6", "1_7"])
def test_both_modes_give_the_same_losses(zoo: Zoo, tmp_path: Path, model: str, release: str) -> None:
    pipelined = losses(zoo.csrun("python", model, "-m", "train", "--max_steps", "4", release=release))
    zoo.model_dir = tmp_path / "streamed"
    streamed = losses(zoo.csrun("python-ws", model, "-m", "train", "--max_steps", "4", release=release))
    assert len(pipelined) >= 4
    assert pipelined[:4] == streamed[:4]


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
@pytest.mark.parametrize("option", ["--compile_only", "--validate_only"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_1_6_compiles(zoo: Zoo, interpreter: str, option: str, mode: str) -> None:
    zoo.csrun(interpreter, "gpt2", "-m", mode, option)
    assert len(list(zoo.model_dir.glob("tfcs_*"))) == (1 if option == "--compile_only" else 0)
    assert not zoo.checkpoints()


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
@pytest.mark.parametrize("scale", ["dynamic", "tf_dynamic", "8.0"])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_mixed_precision_loss_scaling_and_accumulation(
    zoo: Zoo, interpreter: str, scale: str, accumulated: int
) -> None:
    words = ["--set", "model.mixed_precision=true", "--set", f"optimizer.loss_scaling_factor={scale}"]
    words += ["--set", f"optimizer.grad_accum_steps={accumulated}", "--set", "runconfig.disable_standard_logs=true"]
    words += ["--set", "optimizer.log_hists=true", "--set", "optimizer.ws_summary=true", "--summaries"]
    text = zoo.csrun(interpreter, "gpt2", "-m", "train", "--max_steps", "4", *words)
    assert "ckpt-4" in text.splitlines()[-1] or "ckpt-4" in text
    if accumulated > 1:
        assert len(re.findall(r"loss = [\d.]+, step = \d", text)) == 4
    path = tf.train.latest_checkpoint(str(zoo.model_dir))
    assert path is not None
    names = [name for name, _ in tf.train.list_variables(path)]
    assert ("accum_step_counter" in names) == (accumulated > 1)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
def test_each_optimizer_trains(zoo: Zoo, interpreter: str, optimizer: str) -> None:
    words = ["--set", f"optimizer.optimizer_type={optimizer}", "--set", "optimizer.max_gradient_norm=null"]
    words += ["--set", "optimizer.max_gradient_value=0.5"]
    assert "ckpt-3" in zoo.csrun(interpreter, "gpt2", "-m", "train", "--max_steps", "3", *words)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_models_with_labels_of_minus_one_train(zoo: Zoo, interpreter: str, model: str) -> None:
    assert "ckpt-3" in zoo.csrun(interpreter, model, "-m", "train", "--max_steps", "3", "--set", "model.use_vsl=true")


@pytest.mark.slow
def test_1_6_warm_starts_without_the_output_layer(zoo: Zoo, tmp_path: Path) -> None:
    zoo.csrun("python", "bert", "-m", "train", "--max_steps", "3")
    start = str(zoo.model_dir / "model.ckpt-3")
    zoo.model_dir = tmp_path / "tuned"
    words = ["--checkpoint_path", start, "--exclude", "output_logits"]
    text = zoo.csrun("python", "classifier", "-m", "train", "--max_steps", "1", *words)
    assert re.search(r"Warm-started \d+ variables", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, rows", [("qa", "['end_logits', 'start_logits', 'unique_ids']"), ("token_classifier", "(8,)")]
)
def test_1_6_predicts(zoo: Zoo, model: str, rows: str) -> None:
    zoo.csrun("python", model, "-m", "train", "--max_steps", "1")
    assert results(zoo.csrun("python", model, "-m", "predict")) == [f"RESULT 10 {rows}"]
    assert (zoo.model_dir / "predict" / "predictions_tf_0.npz").exists()


@pytest.mark.slow
def test_1_6_trains_and_evaluates_in_turn(zoo: Zoo) -> None:
    text = zoo.csrun("python", "bert", "-m", "train_and_eval", "--max_steps", "4", "--eval_steps", "2")
    assert text.count("Saving dict for global step") == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--cs_ip", "K8S_CS_IP"])
def test_1_6_runs_on_a_system_by_its_address(zoo: Zoo, way: str) -> None:
    registry.create(zoo.home, "lab", "10.0.0.1", "pipelined")
    words = ["--cs_ip", "10.0.0.1"] if way == "--cs_ip" else []
    environ = {} if words else {"K8S_CS_IP": "10.0.0.1"}
    text = zoo.csrun("python", "bert", "-m", "train", "--max_steps", "3", "--multireplica", *words, **environ)
    assert "DONE model.ckpt-3" in text
    assert "Multi-replica training: " in text


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
def test_model_summaries_are_written_only_when_enabled(zoo: Zoo, interpreter: str) -> None:
    words = ["--set", "model.boundary_casting=true", "--set", "model.tf_summary=true"]
    words += ["--set", "runconfig.save_summary_steps=1"]
    tags = []
    for more in ([], ["--summaries"]):
        zoo.model_dir = zoo.model_dir.parent / f"model{len(more)}"
        zoo.csrun(interpreter, "gpt2", "-m", "train", "--max_steps", "2", *words, *more)
        events = [event for path in zoo.model_dir.glob("events*") for event in summaries(path)]
        tags.append({value.tag for event in events for value in event.summary.value})
    assert not any(tag.endswith("/norm") or tag == "train/lr" for tag in tags[0])
    assert any(tag.endswith("/norm") for tag in tags[1])
    assert "train/lr" in tags[1]
    assert "loss" in tags[0] & tags[1]


def summaries(path: Path) -> list[tf.compat.v1.Event]:
    return list(tf.compat.v1.train.summary_iterator(str(path)))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", ["true", "false"])
def test_files_are_sharded_by_tf_config(zoo: Zoo, sharded: str) -> None:
    words = ["--set", f"train_input.use_multiple_workers={sharded}"]
    text = zoo.csrun("python", "gpt2", "-m", "train", "--max_steps", "3", *words)
    assert "DONE model.ckpt-3" in text


@pytest.mark.slow
def test_a_run_with_a_sparsifier_trains(zoo: Zoo) -> None:
    assert "ckpt-2" in zoo.csrun("python-ws", "gpt2", "-m", "train", "--max_steps", "2", "--sparsifier")


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python"])
def test_1_2_style_runs(zoo: Zoo, interpreter: str) -> None:
    assert "DONE model.ckpt-4" in zoo.csrun(interpreter, "", "-m", "train", release="1_2")
    text = zoo.csrun(interpreter, "", "-m", "eval", release="1_2")
    assert results(text) == ["RESULT ['elem_0', 'global_step', 'loss']"]
    zoo.csrun(interpreter, "", "--validate_only", release="1_2")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("target", [("CPU",), ("CSX", "pipeline"), ("CSX", "weight_streaming")], ids="-".join)
def test_1_8_trains_and_evaluates_all(zoo: Zoo, model: str, target: tuple[str, ...]) -> None:
    if target[-1] == "weight_streaming" and model not in BOTH:
        pytest.skip("the model codes run it in pipelined mode only")
    zoo.wheel(model, *target, "-m", "train", "--max_steps", "4")
    text = zoo.wheel(model, *target, "-m", "eval_all")
    assert [line.split()[1] for line in results(text)] == ["0", "3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", "weight_streaming"])
@pytest.mark.parametrize("option", ["--compile_only", "--validate_only"])
def test_1_8_compiles(zoo: Zoo, strategy: str, option: str) -> None:
    words = ["-m", "train", option, "--compile_dir", str(zoo.model_dir / "compiled"), "--num_workers_per_csx", "8"]
    words += ["--job_labels", "a=b", "--mount_dirs", "/data", "--python_paths", "/code", "--job_time_sec", "100"]
    zoo.wheel("gpt2", "CSX", strategy, *words)
    assert len(list((zoo.model_dir / "compiled").glob("tfcs_*"))) == (1 if option == "--compile_only" else 0)


@pytest.mark.slow
def test_1_8_warm_starts_from_a_bare_path(zoo: Zoo, tmp_path: Path) -> None:
    zoo.wheel("bert", "CSX", "pipeline", "-m", "train", "--max_steps", "3")
    start = str(zoo.model_dir / "model.ckpt-3")
    zoo.model_dir = tmp_path / "tuned"
    text = zoo.wheel("classifier", "CSX", "pipeline", "-m", "train", "--max_steps", "1", "--checkpoint_path", start)
    assert "Not warm-started: Tensor output_logits/output_logits/kernel is not found in" in text


@pytest.mark.slow
@pytest.mark.parametrize("strategy, name", [(None, "model-ckpt"), ("ES_PIPELINE", "model.ckpt")])
def test_the_appliance_scripts_of_1_6_and_1_7_run(zoo: Zoo, strategy: str | None, name: str) -> None:
    words = ["--execution_strategy", strategy] if strategy else []
    zoo.appliance("gpt2", "--mode", "train", "--max_steps", "3", *words)
    assert any(path.startswith(f"{name}-3") for path in zoo.checkpoints())
    assert len(results(zoo.appliance("gpt2", "--mode", "eval", *words))) == 1
    start = next(str(zoo.model_dir / path) for path in zoo.checkpoints() if path.startswith(f"{name}-3"))
    zoo.model_dir = zoo.model_dir.parent / "other"
    start = start.removesuffix(".index").partition(".data-")[0]
    zoo.appliance("gpt2", "--mode", "train", "--max_steps", "1", "--checkpoint_path", start, *words)
