import pytest

from csrun import site
from csrun.executors.embedded import Embedded
from csrun.launching import command_hints, make_executor, parse_labels
from csrun.manual import WSE_OPTIONS
from csrun.options import UsageError, parse


@pytest.mark.parametrize(
    "words",
    [["--cs_ip", "10.0.0.1"], ["--cs_ip=10.0.0.1"], ["--cs-ip", "10.0.0.1"], ["-m", "train", "--cs_ip=10.0.0.1"]],
)
def test_the_address_is_read_from_the_command(words: list[str]) -> None:
    assert command_hints(["python-ws", "run.py", *words]).cs_ip == "10.0.0.1"


def test_a_command_without_an_address_means_the_embedded_system() -> None:
    assert command_hints(["python", "run.py", "--cs_ip"]).cs_ip is None
    assert command_hints(["python", "run.py"]).cs_ip is None


def test_a_label_needs_a_key() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        parse_labels(["=x"])


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([], 2),
        (["--input-workers", "5"], 5),
        (["--weight-servers", "3"], 3),
        (["--input-workers=5", "--local-tasks=1"], 1),
    ],
)
def test_an_explicit_number_of_workers_is_not_folded(words: list[str], most: int) -> None:
    executor = make_executor(
        "embedded", ("x",), site.parse("LOCAL_TASKS=2", "site.conf"), parse([*words, "x"], WSE_OPTIONS)
    )
    assert isinstance(executor, Embedded) and executor.most_tasks == most
