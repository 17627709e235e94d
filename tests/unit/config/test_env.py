"""The environment is read once, typed, and refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.config import env


def test_an_empty_environment_is_a_pipelined_chief() -> None:
    found = env.read({})
    assert (found.execution_mode, found.role, found.task, found.job_id) == ("pipelined", "chief", 0, None)
    assert found.home == Path("~/.cerebras").expanduser()


def test_what_is_set_is_read() -> None:
    found = env.read({env.EXECUTION_MODE: "weight_streaming", env.HOME: "/h", env.TASK: "3", env.INPUT_WORKERS: "2"})
    assert (found.execution_mode, found.home, found.task, found.input_workers) == ("weight_streaming", Path("/h"), 3, 2)


@pytest.mark.parametrize(
    "name, value",
    [(env.EXECUTION_MODE, "streaming"), (env.TASK, "-1"), (env.INPUT_WORKERS, "two"), (env.TRACE_STEP, "last")],
)
def test_a_value_it_cannot_have_is_refused_with_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        env.read({name: value})
