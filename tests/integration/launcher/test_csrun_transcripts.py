"""The seeds' transcripts at a real terminal: the launch of the quickstart, and the queue as the workshop shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pexpect

from cerebras_tensorflow.system import jobs

Words = Callable[..., Sequence[str]]
QUICKSTART = [
    "--total-nodes",
    "14",
    "--tasks-per-node",
    "8",
    "--cpus-per-task",
    "16",
    "--single-task-nodes",
    "2",
    "--cyclic",
    "python-ws",
    "run.py",
    "--model_dir",
    "model_dir",
    "--cs_ip",
    "10.0.0.1",
    "--params",
    "configs/params_continuous_pretraining.yaml",
    "--mode",
    "train",
    "--max_steps",
    "10",
]
SCRIPT = """
import os, sys
print("INFO:tensorflow:Running the TF Client", os.environ["CEREBRAS_EXECUTION_MODE"], sys.argv[1:3])
"""


def shown_at_terminal(words: Sequence[str], folder: Path | None = None) -> tuple[list[str], int]:
    """Return the lines that a command shows at a terminal, and its exit code."""
    terminal = pexpect.spawn(words[0], list(words[1:]), encoding="utf-8", timeout=60, dimensions=(40, 200), cwd=folder)
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.before.replace("\r\n", "\n").splitlines(), terminal.exitstatus


def test_the_quickstart_launch_prints_the_documented_lines(home: Path, argv: Words, run, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    assert run("cs-system", "create", "lab", "--address", "10.0.0.1", "--mode", "weight-streaming").returncode == 0
    lines, code = shown_at_terminal(
        argv("csrun_wse", *QUICKSTART[:8], "--executor", "embedded", *QUICKSTART[8:]), tmp_path
    )
    assert code == 0, lines
    places = [
        next(number for number, line in enumerate(lines) if re.fullmatch(pattern, line))
        for pattern in (
            r"Launching: python-ws run\.py --model_dir model_dir --cs_ip 10\.0\.0\.1 --params .*",
            r"srun: job \d+ queued and waiting for resources",
            r"srun: job \d+ has been allocated resources",
            r"INFO:tensorflow:Running the TF Client weight_streaming \['--model_dir', 'model_dir'\]",
        )
    ]
    assert places == sorted(places)
    assert any(re.search(r"the plan's 98 tasks on 14 nodes", line) for line in lines)


def test_the_queue_looks_as_in_the_workshop(home: Path, argv: Words) -> None:
    finished = jobs.submit(home, "CS2-01-01", "pipelined", labels={"name": "custom_label_1"}, user="user1")
    finished.wait_for_wafer(lambda: True)
    finished.finish(jobs.SUCCEEDED)
    words = argv("csrun_wse", "--executor", "embedded", "--job-labels", "name=custom_label_2", "python", "-c")
    code = "import signal; print('step', 1, flush=True); signal.pause()"
    launch = pexpect.spawn(words[0], [*words[1:], code], encoding="utf-8", timeout=60)
    launch.expect(r"job \d+ is (wsjob-[a-z0-9]{22}) on ")
    running = launch.match.group(1)
    launch.expect_exact("step 1")

    header, *rows = shown_at_terminal(argv("csctl", "get", "jobs"))[0]
    assert re.fullmatch(r"NAME +AGE +PHASE +SYSTEMS +USER +LABELS", header)
    assert [row.split()[0::2] for row in rows] == [[running, "RUNNING", jobs.user_name()]]
    assert rows[0].split()[-1] == "name=custom_label_2"

    _, *rows = shown_at_terminal(argv("csctl", "get", "jobs", "-a"))[0]
    assert [row.split()[0] for row in rows] == [finished.id, running]
    assert rows[0].split()[2:] == ["SUCCEEDED", "CS2-01-01", "user1", "name=custom_label_1"]

    assert shown_at_terminal(argv("csctl", "cancel", "job", running)) == (["Job canceled successfully"], 0)
    launch.expect(pexpect.EOF)
    launch.close()
    assert launch.exitstatus == 143
    assert shown_at_terminal(argv("csctl", "get", "jobs"))[0] == [re.sub(" +", "  ", header)]
    assert jobs.find(home, running).phase == "CANCELLED"
