import pytest

from csrun.launching import command_hints, parse_labels
from csrun.options import UsageError


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
