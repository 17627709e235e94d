import pytest

from csrun.manual import ANALYZER_OPTIONS, CPU_OPTIONS, WSE_OPTIONS
from csrun.options import MistypedError, UsageError, command_hint, parse


@pytest.mark.parametrize(
    "words",
    [
        ["--total-nodes", "5"],
        ["--total_nodes", "5"],
        ["--total-nodes=5"],
        ["--total_nodes=5"],
        ["--nodes", "5"],
        ["--nodes=5"],
    ],
)
def test_every_spelling_of_an_option_means_the_same(words: list[str]) -> None:
    parsed = parse([*words, "python-ws", "run.py"], WSE_OPTIONS)
    assert parsed.values == {"total-nodes": 5}
    assert parsed.command == ("python-ws", "run.py")


def test_options_end_at_the_first_other_word() -> None:
    parsed = parse(["--cyclic", "python", "run.py", "--nodes", "7", "--help"], WSE_OPTIONS)
    assert parsed.command == ("python", "run.py", "--nodes", "7", "--help")
    assert parsed.values == {"cyclic": True}
    assert not parsed.wants_help


def test_a_double_dash_ends_the_options() -> None:
    assert parse(["--cyclic", "--", "--odd-program"], WSE_OPTIONS).command == ("--odd-program",)


def test_an_unknown_option_is_ignored_with_a_suggestion() -> None:
    parsed = parse(["--single-nodes=5", "python"], WSE_OPTIONS)
    assert parsed.warnings == ("WARN: Unknown option (ignored): --single-nodes=5; did you mean --single-task-nodes?",)
    assert parsed.command == ("python",)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("--dry-rum", "dry-run"), ("--dryrun", "dry-run"), ("--totalnodes=5", "total-nodes"), ("-dry-run", "dry-run")],
)
def test_a_mistyped_option_is_an_error(word: str, meant: str) -> None:
    with pytest.raises(MistypedError, match=f"Unknown option {word}; did you mean --{meant}\\?"):
        parse([word, "python", "x"], WSE_OPTIONS)


def test_options_of_the_other_launchers_do_not_count_as_mistyped() -> None:
    launchers = (WSE_OPTIONS, CPU_OPTIONS, ANALYZER_OPTIONS)
    names = {name for options in launchers for option in options for name in (option.name, *option.aliases)}
    for options in launchers:
        own = {name for option in options for name in (option.name, *option.aliases)}
        strange = [f"--{name}=1" for name in sorted(names - own)]
        assert parse([*strange, "python"], options).unknown == tuple(strange)


def test_the_value_of_an_unknown_option_becomes_the_command_and_the_hint_says_so() -> None:
    parsed = parse(["--bogus", "5", "python"], WSE_OPTIONS)
    assert parsed.command == ("5", "python")
    assert "--bogus is unknown" in command_hint(parsed)


@pytest.mark.parametrize("words", [["--mount-dirs"], ["--mount-dirs="], ["--mount_dirs", "--cyclic", "x"]])
def test_a_missing_value_is_refused_with_the_published_text(words: list[str]) -> None:
    with pytest.raises(UsageError, match='ERROR: "--mount-dirs" requires a non-empty argument'):
        parse(words, WSE_OPTIONS)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1e3", "²", ""])
def test_a_size_is_a_number_from_one(value: str) -> None:
    with pytest.raises(UsageError, match="total-nodes"):
        parse([f"--total-nodes={value}", "python"], WSE_OPTIONS)


@pytest.mark.parametrize("words", [["--local-tasks=-1"], ["--local-tasks", "-1"]])
def test_a_negative_number_is_out_of_range_in_both_spellings(words: list[str]) -> None:
    with pytest.raises(UsageError, match="\"--local-tasks\" requires a number from 0, not '-1'"):
        parse([*words, "true"], WSE_OPTIONS)


def test_no_single_task_nodes_is_a_valid_number() -> None:
    assert parse(["--single-task-nodes", "0", "x"], WSE_OPTIONS).number("single-task-nodes") == 0


@pytest.mark.parametrize("word", ["-h", "-?", "--help"])
def test_help_has_three_names(word: str) -> None:
    assert parse([word], CPU_OPTIONS).wants_help


@pytest.mark.parametrize(("value", "truth"), [("True", True), ("false", False)])
def test_truths_are_read_in_any_case(value: str, truth: bool) -> None:
    assert parse(["--alloc-node", value, "x"], CPU_OPTIONS).truth("alloc-node", not truth) is truth


def test_a_truth_value_other_than_true_or_false_is_refused() -> None:
    with pytest.raises(UsageError, match="requires True or False, not 'yes'"):
        parse(["--alloc_node=yes", "x"], CPU_OPTIONS)
