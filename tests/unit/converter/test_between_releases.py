"""Params files and checkpoints between releases 1.7 to 2.9 of the PyTorch Model Zoo."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter import releases
from cerebras_tensorflow.converter.api import (
    Options,
    convert_checkpoint_from_file,
    convert_config,
    convert_config_from_file,
)
from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import ConfigConversionError
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_file import Leaf, TorchReader
from cerebras_tensorflow.converter.torch_writer import TorchWriter

GPT2 = {"vocab_size": 9, "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 6}
LLAMA = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 12}
T5 = {"d_model": 8, "num_layers": 1, "num_heads": 2}
FAMILIES = {
    "gpt2": GPT2,
    "gptj": GPT2 | {"rotary": True},
    "gpt-neox": LLAMA,
    "llama": LLAMA,
    "mistral": LLAMA | {"num_key_value_heads": 2},
    "falcon": LLAMA | {"new_decoder_architecture": True, "num_kv_heads": 2, "intermediate_size": None},
    "bert": LLAMA,
    "t5": T5,
}
OLD: dict[str, Any] = {
    "model": {"hidden_size": 8, "use_rms_norm": True, "mixed_precision": True, "use_bfloat16": True},
    "optimizer": {
        "optimizer_type": "AdamW",
        "beta1": 0.9,
        "beta2": 0.95,
        "weight_decay_rate": 0.1,
        "max_gradient_norm": 1.0,
        "loss_scaling_factor": "dynamic",
        "log_summaries": True,
        "learning_rate": [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "steps": 10},
            {"scheduler": "CosineDecay", "initial_learning_rate": 0.1, "end_learning_rate": 0.01, "decay_steps": 90},
        ],
    },
    "train_input": {"data_processor": "GptHDF5DataProcessor", "batch_size": 4, "micro_batch_size": 2},
    "eval_input": {"data_processor": "GptHDF5DataProcessor", "batch_size": 4},
    "runconfig": {
        "max_steps": 100,
        "checkpoint_steps": 50,
        "log_steps": 5,
        "seed": 1,
        "target_device": "CSX",
        "num_csx": 2,
        "mount_dirs": ["/data"],
        "max_checkpoints": 3,
        "checkpoint_path": "start.mdl",
    },
}


def changed(content: dict[str, Any], source: str, target: str, model: str = "llama") -> dict[str, Any]:
    return releases.convert_config(MODELS[model], copy.deepcopy(content), source, target)


def test_an_old_params_file_gets_the_trainer_layout_of_2_9_and_comes_back() -> None:
    trainer = changed(OLD, "cs-1.9", "cs-2.9")["trainer"]
    init = trainer["init"]
    assert init["model"] == {"hidden_size": 8, "norm_type": "rmsnorm", "name": "llama"}
    assert init["optimizer"] == {"AdamW": {"weight_decay": 0.1, "betas": [0.9, 0.95]}}
    (schedule,) = init["schedulers"]
    linear, cosine = schedule["SequentialLR"]["schedulers"]
    assert linear["LinearLR"]["total_iters"] == 10 and cosine["CosineDecayLR"]["total_iters"] == 90
    assert init["precision"] == {
        "enabled": True,
        "fp16_type": "bfloat16",
        "max_gradient_norm": 1.0,
        "loss_scaling_factor": "dynamic",
        "log_loss_scale": True,
    }
    assert init["backend"] == {"backend_type": "CSX", "cluster_config": {"num_csx": 2, "mount_dirs": ["/data"]}}
    assert init["loop"] == {"max_steps": 100} and init["checkpoint"] == {"steps": 50}
    callbacks = {name: settings for entry in init["callbacks"] for name, settings in entry.items()}
    assert callbacks["KeepNCheckpoints"] == {"n": 3} and callbacks["ComputeNorm"] == {}
    assert callbacks["ScopedTrainFlags"] == {"csx.performance.micro_batch_size": 2}
    assert trainer["fit"]["ckpt_path"] == trainer["validate_all"]["ckpt_paths"] == "start.mdl"
    assert trainer["fit"]["train_dataloader"] == {"data_processor": "GptHDF5DataProcessor", "batch_size": 4}
    assert trainer["validate"]["val_dataloader"] == OLD["eval_input"]
    assert changed({"trainer": trainer}, "cs-2.9", "cs-1.9") == OLD


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_converts_between_all_its_releases(name: str) -> None:
    formats = [item for item in MODELS[name].formats if item.startswith("cs-") and item != "cs-1.6"]
    assert formats[-1] == "cs-2.9"
    for source, target in itertools.permutations(formats[max(0, formats.index("cs-2.1") - 2) :], 2):
        content = {"model": convert_config(name, "hf", source, FAMILIES[name])["model"]}
        converted = changed(content, source, target, name)
        section = converted["trainer"]["init"]["model"] if "trainer" in converted else converted["model"]
        # The new file means the same as the one that comes straight from Hugging Face's config.
        assert convert_config(name, target, "hf", section) == convert_config(name, source, "hf", content["model"])


@pytest.mark.parametrize(
    ("model", "section", "source", "target", "message"),
    [
        ("llama", {"extra_attention_params": {"num_kv_groups": 2}}, "cs-2.0", "cs-1.9", "introduced in cs-2.0"),
        ("llama", {"rope_theta": 5e5}, "cs-2.9", "cs-2.0", "rope_theta=500000.0"),
        ("llama", {"pos_scaling_type": "llama3", "pos_scaling_factor": 8}, "cs-2.9", "cs-2.2", "introduced in cs-2.3"),
        ("gpt2", {"norm_type": "batchnorm"}, "cs-2.0", "cs-1.9", "norm_type=batchnorm"),
        ("t5", {"encoder_nonlinearity": "geglu"}, "cs-2.1", "cs-1.8", "Gates were introduced in cs-2.0"),
    ],
)
def test_a_downgrade_refuses_what_the_older_release_lacks(
    model: str, section: dict[str, Any], source: str, target: str, message: str
) -> None:
    with pytest.raises(ConfigConversionError, match=message):
        changed({"model": section}, source, target, model)


def test_an_optimizer_without_its_type_keeps_its_other_settings_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    section = {"weight_decay": 0.1, "max_gradient_norm": 1.0, "learning_rate": 0.01}
    init = changed({"model": {}, "optimizer": section}, "cs-2.2", "cs-2.3")["trainer"]["init"]
    assert init["precision"] == {"max_gradient_norm": 1.0}
    assert init["schedulers"] == [{"ConstantLR": {"learning_rate": 0.01}}]
    assert [record.getMessage() for record in caplog.records] == ["Key not matched: optimizer.weight_decay"]


def sequential(milestones: list[int]) -> dict[str, Any]:
    parts = [{"LinearLR": {"total_iters": 10}}, {"LinearLR": {"total_iters": 20}}, {"CosineDecayLR": {}}]
    return {"schedulers": [{"SequentialLR": {"schedulers": parts, "milestones": milestones}}]}


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"callbacks": [{"KeepNCheckpoints": {"n": 1}}, {"KeepNCheckpoints": {"n": 2}}]}, "several callbacks KeepN"),
        ({"callbacks": [{"ScopedTrainFlags": {"a": 1}}, {"ScopedTrainFlags": {"a": 2}}]}, "several callbacks Scoped"),
        ({"optimizer": {"SGD": {}, "AdamW": {}}}, "several optimizers: SGD, AdamW"),
        (sequential([10, 25]), r"milestones=\[10, 25\].*\[10, 30\]"),
    ],
)
def test_a_trainer_that_the_old_layout_cannot_express_is_refused(init: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigConversionError, match=message):
        changed({"trainer": {"init": {"model": {}, **init}}}, "cs-2.3", "cs-2.2")


def test_a_downgrade_keeps_or_logs_every_setting_of_a_trainer(caplog: pytest.LogCaptureFixture) -> None:
    callbacks = [
        {"ComputeNorm": None},
        {"LogSparsity": {}},
        {"ScopedTrainFlags": {"csx.performance.micro_batch_size": 2}},
        {"ScopedTrainFlags": {"csx.debug": 1}},
        {"CheckLoss": {}},
        {"CheckLoss": {"limit": 3}},
    ]
    init = {"model": {}, "callbacks": callbacks, "sparsity": [{"sparsity": 0.5}, {"sparsity": 0.6}]}
    trainer = {
        "init": init | sequential([10, 30]),
        "fit": {"train_dataloader": {"batch_size": 4}, "val_dataloader": {"batch_size": 5}},
        "validate": {"val_dataloader": {"batch_size": 5}},
        "validate_all": {"val_dataloaders": [{"batch_size": 6}]},
    }
    old = changed({"trainer": trainer}, "cs-2.3", "cs-2.2")
    assert old["optimizer"]["log_summaries"] is True
    assert [rate.get("total_iters") for rate in old["optimizer"]["learning_rate"]] == [10, 20, None]
    assert old["sparsity"] == [{"sparsity": 0.5, "add_summaries": True}, {"sparsity": 0.6, "add_summaries": True}]
    assert old["train_input"] == {"batch_size": 4, "micro_batch_size": 2} and old["eval_input"] == {"batch_size": 5}
    assert sorted(record.getMessage().removeprefix("Key not matched: trainer.") for record in caplog.records) == [
        "init.callbacks.CheckLoss",
        "init.callbacks.ScopedTrainFlags.csx.debug",
        "validate_all.val_dataloaders",
    ]


def test_an_upgrade_logs_the_old_settings_of_a_run_that_it_drops(caplog: pytest.LogCaptureFixture) -> None:
    run = {"num_wgt_servers": 12, "max_steps": 5}
    assert changed({"model": {}, "runconfig": run}, "cs-2.0", "cs-2.1")["runconfig"] == {"max_steps": 5}
    assert "Key not matched: runconfig.num_wgt_servers" in caplog.text


def test_several_trainers_are_refused(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("trainer: [{trainer: {init: {model: {}}}}]")
    with pytest.raises(ConfigConversionError, match="no settings of a model"):
        convert_config_from_file("gpt2", "cs-2.9", "cs-2.2", str(params))


def test_cs_auto_is_the_release_that_a_checkpoint_names_and_cs_current_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, params = tmp_path / "a.mdl", tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"model": {"hidden_size": 3}}))
    words = ["convert", "--model", "gpt2", "--src-fmt", "cs-auto", "--tgt-fmt", "cs-current", "--config", str(params)]
    for metadata, expected in (([], 1), ([{"version": "2.2.1"}], 0)):
        with TorchWriter(path, tree={"model": {"lm_head.weight": Leaf("h")}, "__metadata__": metadata}) as writer:
            writer.add("h", np.ones(3, np.float32))
        assert main([*words, "--output-dir", str(tmp_path / "out"), str(path)]) == expected
    assert "does not say which release wrote it" in capsys.readouterr().err
    with TorchReader(tmp_path / "out" / "a_to_cs-2.9.mdl") as reader:
        assert [entry["version"] for entry in reader.tree["__metadata__"]] == ["2.2.1", "2.9.0"]
    assert "trainer" in yaml.safe_load((tmp_path / "out" / "params_to_cs-2.9.yaml").read_text())


POSITIONS = {
    "cs-2.0": "embedding_layer.position_embeddings.weight",
    "cs-2.9": "embedding_layer.position_embeddings.embed.weight",
}


@pytest.mark.parametrize(("source", "target"), [("cs-2.0", "cs-2.9"), ("cs-2.9", "cs-2.0")])
def test_everything_in_a_checkpoint_stays_under_the_names_of_the_release(
    source: str, target: str, tmp_path: Path
) -> None:
    tree = {
        "model": {f"model.{POSITIONS[source]}": Leaf("w"), "model.lm_head.weight": Leaf("h")},
        "optimizer": {"state": {0: {"exp_avg": Leaf("m")}}},
        "global_step": 5,
    }
    rng = np.random.default_rng(3)
    values = {name: rng.normal(size=[2, 3]).astype(np.float32) for name in "whm"}
    path = tmp_path / "checkpoint_5.mdl"
    with TorchWriter(path, tree=tree) as writer:
        for name, value in values.items():
            writer.add(name, value)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"model": {"hidden_size": 3}}))
    there = Options(str(tmp_path / "out"), verify=True)
    written, _ = convert_checkpoint_from_file("gpt2", source, target, str(path), str(tmp_path / "params.yaml"), there)
    assert Path(written).name == f"checkpoint_5_to_{target}.mdl"
    with TorchReader(written) as reader:
        np.testing.assert_array_equal(reader.read(f"model.model.{POSITIONS[target]}"), values["w"])
        np.testing.assert_array_equal(reader.read("optimizer.state.0.exp_avg"), values["m"])
        assert reader.tree["global_step"] == 5
        # Loaders since 2.5 compare this version with their own.
        assert [entry["version"] for entry in reader.tree.get("__metadata__", [])] == (
            ["2.9.0"] if target == "cs-2.9" else []
        )
    h5 = Options(str(tmp_path / "h5"), verify=True, export_h5_checkpoint=True)
    written, params = convert_checkpoint_from_file("gpt2", source, target, str(path), str(tmp_path / "params.yaml"), h5)
    back, _ = convert_checkpoint_from_file("gpt2", target, source, written, params, h5)
    with TorchReader(path) as first, open_any(back) as second:
        np.testing.assert_array_equal(first.read(f"model.model.{POSITIONS[source]}"), values["w"])
        np.testing.assert_array_equal(second.read(f"model.model.{POSITIONS[source]}"), values["w"])
