"""Environment variables are read into typed values; the error of an invalid one names the variable."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.config import env


def test_an_empty_environment_is_a_pipelined_chief() -> None:
    variables = env.read({})
    assert (variables.execution_mode, variables.role, variables.task, variables.job_id) == (
        "pipelined",
        "chief",
        0,
        None,
    )
    assert variables.home == Path("~/.cerebras").expanduser()


def test_variables_that_are_set_are_read() -> None:
    variables = env.read(
        {env.EXECUTION_MODE: "weight_streaming", env.HOME: "/h", env.TASK: "3", env.INPUT_WORKERS: "2"}
    )
    assert (variables.execution_mode, variables.home, variables.task, variables.input_workers) == (
        "weight_streaming",
        Path("/h"),
        3,
        2,
    )


@pytest.mark.parametrize(
    "name, value",
    [
        (env.EXECUTION_MODE, "streaming"),
        (env.TASK, "-1"),
        (env.INPUT_WORKERS, "two"),
        (env.TRACE_STEP, "last"),
        (env.TF_CONFIG_NETWORKS, "10.0.0.1/8"),
    ],
)
def test_an_invalid_value_is_refused_and_the_error_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        env.read({name: value})


def test_a_home_whose_path_is_not_utf8_is_refused() -> None:
    with pytest.raises(ValueError, match=r"CEREBRAS_HOME is /a\\xff, which is not UTF-8 text"):
        env.read({"CEREBRAS_HOME": "/a\udcff"})


def test_a_user_without_a_home_is_asked_to_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> Any:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ValueError, match="CEREBRAS_HOME is not set, and this user has no home folder"):
        env.read({})
    assert env.read({"CEREBRAS_HOME": "/somewhere"}).home == Path("/somewhere")


@pytest.fixture
def aws_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile with keys and a region, in an environment that has neither."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-1\naws_access_key_id = id\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "lab")


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_region_of_the_environment_counts_before_that_of_a_profile(
    aws_profile: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert env.object_storage("s3") == {"access_key_id": "id", "region": "eu-west-1"}
    monkeypatch.setenv(name, "us-east-2")
    assert env.object_storage("s3") == {"access_key_id": "id"}


def test_a_user_without_a_home_has_no_profile(aws_profile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    assert env.object_storage("s3") == {"access_key_id": "id", "region": "eu-west-1"}
    monkeypatch.delenv("AWS_CONFIG_FILE")
    assert env.object_storage("s3") == {}
