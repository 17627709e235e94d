import pytest

from cerebras_tensorflow.errors import SettingsError
from csrun import site


def test_the_original_names_are_read() -> None:
    text = """
    # a site
    export DEF_NODES=5
    DEF_TASKS_PER_NODE="8"   # quoted
    MOUNT_DIRS=/data,/scratch
    GRES_RESOURCE=cs:cerebras:1
    """
    here = site.parse(text, "site.conf")
    assert (here.nodes, here.tasks_per_node, here.mount_dirs) == (5, 8, ("/data", "/scratch"))
    assert here.gres == "cs:cerebras:1"


def test_without_a_file_a_launch_is_one_task_with_all_cpus(tmp_path) -> None:
    here = site.read(tmp_path)
    assert (here.nodes, here.tasks_per_node) == (1, 1)
    assert here.cpus_per_task >= 1


def test_a_site_sets_the_number_of_local_tasks() -> None:
    assert 1 <= site.parse("", "site.conf").local_tasks <= site.MOST_LOCAL_TASKS
    assert site.parse("LOCAL_TASKS=0", "site.conf").local_tasks == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DEF_NODE=5", "unknown name 'DEF_NODE'"),
        ("DEF_NODES=many", "expected a number from 1"),
        ("DEF_NODES=\u00b2", "expected a number from 1"),
        ("DEF_NODES='1", "line 1: No closing quotation"),
        ("DEF_NODES", "expected NAME=VALUE"),
        ("EXECUTOR=ssh", "expected one of auto, embedded, slurm"),
    ],
)
def test_the_error_of_a_bad_line_quotes_it(line: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        site.parse(line, "site.conf")
