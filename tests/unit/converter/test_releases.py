"""Configs between cs-1.7 and cs-1.8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cerebras_tensorflow.converter.cli import main


def convert(folder: Path, name: str, source: str, target: str, model: dict[str, Any]) -> int:
    (folder / "params_train.yaml").write_text(yaml.safe_dump({"model": model, "optimizer": {"learning_rate": 0.1}}))
    words = ["convert-config", "--model", name, "--src-fmt", source, "--tgt-fmt", target]
    return main([*words, str(folder / "params_train.yaml")])


def result(folder: Path, target: str) -> dict[str, Any]:
    content = yaml.safe_load((folder / f"params_train_to_{target}.yaml").read_text())
    assert content["optimizer"] == {"learning_rate": 0.1}
    return content["model"]


@pytest.mark.parametrize("name", ["t5", "transformer"])
@pytest.mark.parametrize(("source", "target"), [("cs-1.7", "cs-1.8"), ("cs-1.8", "cs-1.7")])
def test_the_flag_of_t5_is_turned_around(name: str, source: str, target: str, tmp_path: Path) -> None:
    assert convert(tmp_path, name, source, target, {"use_pre_encoder_decoder_layer_norm": True, "d_model": 8}) == 0
    assert result(tmp_path, target) == {"use_pre_encoder_decoder_layer_norm": False, "d_model": 8}


def test_bert_gets_the_nonlinearities_that_it_had(tmp_path: Path) -> None:
    assert convert(tmp_path, "bert", "cs-1.7", "cs-1.8", {"encoder_nonlinearity": "relu"}) == 0
    expected = {"encoder_nonlinearity": "relu", "pooler_nonlinearity": "relu", "mlm_nonlinearity": "gelu"}
    assert result(tmp_path, "cs-1.8") == expected


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"encoder_nonlinearity": "gelu", "pooler_nonlinearity": "tanh"},
            "pooler_nonlinearity was introduced in cs-1.8",
        ),
        ({"encoder_nonlinearity": "gelu", "mlm_nonlinearity": "relu"}, "mlm_nonlinearity was introduced in cs-1.8"),
        ({"encoder_nonlinearity": "relu"}, "mlm_nonlinearity was introduced in cs-1.8"),
        ({}, "lacks encoder_nonlinearity"),
    ],
)
def test_what_cs_1_7_cannot_express_is_refused(
    model: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(tmp_path, "bert", "cs-1.8", "cs-1.7", model) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "params_train_to_cs-1.7.yaml").exists()
