"""Which commands count as mistyped."""

from __future__ import annotations

from pathlib import Path

import pytest

from csrun.interpreters import check_typed_right
from csrun.process import CommandError


@pytest.mark.parametrize(
    ("word", "meant"), [("pyhton-ws", "python-ws"), ("pyhton", "python"), ("python_ws", "python-ws"), ("slep", "sleep")]
)
def test_a_mistyped_program_gets_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(CommandError, match=f"{word}: command not found; did you mean '{meant}'") as caught:
        check_typed_right([word, "run.py"], is_for_here=True)
    assert caught.value.exit_code == 127


def test_a_mistyped_script_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "run.py").touch()
    with pytest.raises(CommandError, match=r"there is no file .*rnu.py'; did you mean '.*/run.py'"):
        check_typed_right(["python-ws", str(tmp_path / "rnu.py")], is_for_here=True)


def test_a_missing_script_of_the_model_zoo_names_the_command_to_use() -> None:
    script = "modelzoo/src/cerebras/modelzoo/tools/convert_checkpoint.py"
    with pytest.raises(CommandError, match=r"a command with the same arguments: convert_checkpoint$"):
        check_typed_right(["python", script, "list"], is_for_here=True)


def test_programs_missing_on_this_machine_are_accepted_for_a_cluster() -> None:
    check_typed_right(["python3.99", "run.py"], is_for_here=False)
    check_typed_right(["slep", "1"], is_for_here=False)
    with pytest.raises(CommandError, match="python-ws"):
        check_typed_right(["pyhton-ws", "run.py"], is_for_here=False)
