"""Environment variables are read into typed values; the error of an invalid one names the variable."""

from __future__ import annotations

from pathlib import Path

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
    [(env.EXECUTION_MODE, "streaming"), (env.TASK, "-1"), (env.INPUT_WORKERS, "two"), (env.TRACE_STEP, "last")],
)
def test_an_invalid_value_is_refused_and_the_error_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        env.read({name: value})
