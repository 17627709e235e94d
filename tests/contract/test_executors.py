"""What a user may rely on with every executor: exit codes, output, signals, the queue."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from cerebras_tensorflow.system import jobs, registry, state
from csrun.plan import Request, make_plan

EXECUTORS = [pytest.param("embedded"), pytest.param("slurm", marks=pytest.mark.slurm)]

# Saves when it is asked to stop, as a training run does.
SAVING = """
import os, signal, sys
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda n, _: asked.append(n))
if os.environ["CSRUN_ROLE"] != "chief":
    while not asked: signal.pause()
    sys.exit(0)
print("step 1", flush=True)
while not asked: signal.pause()
open(sys.argv[1], "a").write("saved\\n")
print(f"asked {len(asked)} times", flush=True)
sys.exit(128 + asked[0])
"""


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """The executors' names."""
    if request.param == "slurm":
        request.getfixturevalue("slurm")
    return request.param


@pytest.fixture
def wse(
    run: Callable[..., subprocess.CompletedProcess[str]], executor: str
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """csrun_wse under each executor."""
    return lambda *words: run("csrun_wse", "--executor", executor, *words)


@pytest.fixture
def started(
    home: Path, argv: Callable[..., list[str]], executor: str
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """csrun_wse in the background, in a process group of its own."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            argv("csrun_wse", "--executor", executor, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            process_group=0,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def wait_for_line(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdout is not None
    for printed in child.stdout:
        if printed.strip() == line:
            return
    raise AssertionError(f"{line!r} never came")


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_launcher_exits_with_the_exit_code_of_the_command(wse, code: int) -> None:
    assert wse("python", "-c", f"import sys; sys.exit({code})").returncode == code


def test_a_command_killed_by_a_signal_exits_with_128_plus_its_number(wse) -> None:
    assert wse("bash", "-c", "kill -KILL $$").returncode == 137


def test_a_missing_command_exits_with_127(wse, executor: str, home: Path) -> None:
    done = wse("no_such_program_anywhere")
    assert done.returncode == 127
    assert "no_such_program_anywhere: command not found" in done.stderr
    if executor == "embedded":  # refused before it waits for the system; another host may have other programs
        assert not (home / "jobs.sqlite").exists() or not jobs.listed(home, (*jobs.LIVE, *jobs.FINISHED))
        return
    (job,) = jobs.listed(home, jobs.FINISHED)
    chief = json.loads((jobs.job_folder(home, job.id) / "task-0.json").read_text())
    assert chief["ended_at"] >= chief["started_at"]
    assert (chief["exit_code"], chief["message"]) == (127, "no_such_program_anywhere: command not found")


def test_output_is_printed_and_logged(wse, home: Path) -> None:
    done = wse("python", "-c", "import sys; print('to out'); print('to err', file=sys.stderr)")
    assert done.stdout.splitlines()[-1] == "to out"
    assert "to err" in done.stderr
    log = Path(jobs.listed(home, jobs.FINISHED)[0].log).read_text()
    assert "to out" in log and "to err" in log


def test_the_launch_prints_the_published_lines(wse) -> None:
    # Slurm itself prints the two lines for every job of several components.
    done = wse("--total-nodes", "2", "true")
    assert done.stdout.startswith("Launching: ")
    assert re.search(r"^srun: job \d+ queued and waiting for resources$", done.stderr, re.M)
    assert re.search(r"^srun: job \d+ has been allocated resources$", done.stderr, re.M)
    assert re.search(r"wsjob-[a-z0-9]{22}", done.stderr)


def test_arguments_reach_the_command_unchanged(wse, tmp_path: Path) -> None:
    words = ["$(touch evil)", "; touch evil", "a b", "`touch evil`", "'", '"', "*", "é", "--nodes=3", "a\nb"]
    done = wse("--job-labels", "name=$(touch evil)", "python", "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout.splitlines()[-1] == repr(words)
    assert not (Path.cwd() / "evil").exists()


@pytest.mark.parametrize(("word", "mode"), [("python", "pipelined"), ("python-ws", "weight_streaming")])
def test_the_interpreter_chooses_the_mode(wse, word: str, mode: str) -> None:
    done = wse(word, "-c", "import os; print(os.environ['CEREBRAS_EXECUTION_MODE'], os.environ['CSRUN_ROLE'])")
    assert done.stdout.splitlines()[-1] == f"{mode} chief"
    assert registry.find().execution_mode == mode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_once_so_that_it_can_save(started, tmp_path: Path, number: signal.Signals) -> None:
    child = started("python", "-c", SAVING, str(tmp_path / "checkpoint"))
    wait_for_line(child, "step 1")
    child.send_signal(number)
    output, _ = child.communicate(timeout=30)
    assert "asked 1 times" in output
    assert (tmp_path / "checkpoint").read_text() == "saved\n"
    assert child.returncode == 128 + number


def test_ctrl_c_at_the_terminal_reaches_the_command_once(
    home: Path, argv: Callable[..., list[str]], executor: str, tmp_path: Path
) -> None:
    words = argv("csrun_wse", "--executor", executor, "python", "-c", SAVING, str(tmp_path / "checkpoint"))
    terminal = pexpect.spawn(words[0], words[1:], encoding="utf-8", timeout=60)
    terminal.expect_exact("step 1\r\n")
    terminal.sendintr()
    terminal.expect_exact("asked 1 times")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert (tmp_path / "checkpoint").read_text() == "saved\n"
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "CANCELLED"


def test_a_second_signal_kills_the_command(started, home: Path) -> None:
    # Ignores both signals: if the launcher gets them together, it handles the lower number first.
    deaf = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('deaf', flush=True); signal.pause()"
    )
    child = started("python", "-c", deaf)
    wait_for_line(child, "deaf")
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert child.returncode == 137


def test_one_job_at_a_time_in_the_order_of_submission(started, home: Path, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    code = "import sys; open(sys.argv[1], 'a').write(f'in {sys.argv[2]}\\nout {sys.argv[2]}\\n')"
    # The system is busy until all are queued.
    with registry.find().run("pipelined"):
        children = []
        for index in range(5):
            children.append(started("python", "-c", code, str(diary), str(index)))
            while len(jobs.listed(home, (jobs.QUEUED,))) <= index:
                assert children[-1].poll() is None
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    assert diary.read_text().split("\n")[:-1] == [f"{word} {index}" for index in range(5) for word in ("in", "out")]


def test_a_system_in_standby_refuses_and_names_the_activate_command(wse, home: Path) -> None:
    registry.find()
    registry.change(home, "cs2-embedded", state.to_standby, "standby")
    done = wse("python", "-c", "raise SystemExit(3)")
    assert done.returncode == 1
    assert 'cs --system cs2-embedded -c "system activate"' in done.stderr


def test_a_system_in_the_other_mode_refuses_and_names_the_setup_command(wse, home: Path) -> None:
    registry.create(home, "lab", "10.0.0.1")
    done = wse("python-ws", "run.py", "--cs_ip", "10.0.0.1:9000")
    assert done.returncode == 1
    assert '-c "config execmode setup weight_streaming"' in done.stderr


LAUNCHES = {
    "nothing": ((), Request(1, 1)),
    "nodes": (
        ("--total-nodes", "4", "--single-task-nodes", "2", "--tasks-per-node", "3", "--cpus-per-task", "2", "--cyclic"),
        Request(4, 3, 2, single_task_nodes=2, is_cyclic=True),
    ),
    "one-node": (
        ("--input-workers", "2", "--weight-servers", "1", "--cpus-per-task", "1"),
        Request(1, 4, 1, weight_servers=1),
    ),
}
SITE = "DEF_NODES=2\nDEF_TASKS_PER_NODE=2\nDEF_CPUS_PER_TASK=1\nLOCAL_TASKS=8\n"


CHIEF_VARIABLES = {
    "nothing": {
        "CSRUN_LAYOUT": '{"nodes": 1, "tasks_per_node": 1, "single_task_nodes": 0, "cpus_per_task": null, '
        '"is_cyclic": false, "weight_servers": 0, "tasks": 1}',
        "CSRUN_INPUT_WORKERS": "0",
        "CSRUN_WEIGHT_SERVERS": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    },
    "nodes": {
        "CSRUN_LAYOUT": '{"nodes": 4, "tasks_per_node": 3, "single_task_nodes": 2, "cpus_per_task": 2, '
        '"is_cyclic": true, "weight_servers": 0, "tasks": 8}',
        "CSRUN_INPUT_WORKERS": "6",
        "CSRUN_WEIGHT_SERVERS": "1",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NUM_NODES": "4",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2),3(x2)",
    },
    "one-node": {
        "CSRUN_LAYOUT": '{"nodes": 1, "tasks_per_node": 4, "single_task_nodes": 0, "cpus_per_task": 1, '
        '"is_cyclic": false, "weight_servers": 1, "tasks": 4}',
        "CSRUN_INPUT_WORKERS": "2",
        "CSRUN_WEIGHT_SERVERS": "1",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "4",
    },
    "site": {
        "CSRUN_LAYOUT": '{"nodes": 2, "tasks_per_node": 2, "single_task_nodes": 0, "cpus_per_task": 1, '
        '"is_cyclic": false, "weight_servers": 0, "tasks": 4}',
        "CSRUN_INPUT_WORKERS": "3",
        "CSRUN_WEIGHT_SERVERS": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    },
}
"""Variables that the chief of each plan gets under every executor, written by hand."""


def chief_variables(launch: str, home: Path, job: jobs.Job) -> dict[str, str]:
    return {
        "CSRUN_JOB_ID": str(job.number),
        "CSRUN_ROLE": "chief",
        "CSRUN_TASK": "0",
        "CSRUN_INPUT_FOLDER": str(home / "jobs" / job.id),
        "CEREBRAS_EXECUTION_MODE": "weight_streaming",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "0",
        **CHIEF_VARIABLES[launch],
    }


@pytest.mark.parametrize("launch", [*LAUNCHES, "site"])
def test_tasks_and_the_chiefs_variables_match_the_plan(wse, home: Path, launch: str) -> None:
    if launch == "site":
        options, request = (), Request(2, 2, 1)
        home.mkdir()
        (home / "site.conf").write_text(SITE)
    else:
        options, request = LAUNCHES[launch]
        options = (*options, "--local-tasks", "8")
    plan = make_plan(request, [])
    done = wse(*options, "python-ws", "-c", "import os; print(dict(os.environ))")
    assert done.returncode == 0, done.stderr
    assert "folded" not in done.stderr
    (job,) = jobs.listed(home, jobs.FINISHED)
    seen = ast.literal_eval(done.stdout.splitlines()[-1])
    expected = chief_variables(launch, home, job)
    if launch in ("nothing", "one-node"):  # the CPUs depend on this machine or on Slurm
        seen["CSRUN_LAYOUT"] = json.dumps({**json.loads(seen["CSRUN_LAYOUT"]), "cpus_per_task": request.cpus_per_task})
    assert {name: seen.get(name) for name in expected} == expected
    ends = [json.loads(path.read_text()) for path in jobs.job_folder(home, job.id).glob("task-*.json")]
    assert sorted((end["rank"], end["role"]) for end in ends) == [(task.rank, task.role) for task in plan.tasks]
    assert all(end["ended_at"] and end["exit_code"] == 0 for end in ends)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_task_stops_the_launch_and_the_error_names_role_host_and_log(
    started, home: Path, tmp_path: Path, rank: int
) -> None:
    options = ("--input-workers", "1", "--weight-servers", "1", "--cpus-per-task", "1", "--local-tasks", "1")
    child = started(*options, "python", "-c", SAVING, str(tmp_path / "checkpoint"), stderr=subprocess.STDOUT)
    wait_for_line(child, "step 1")
    path = jobs.job_folder(home, jobs.listed(home)[0].id) / f"task-{rank}.json"
    while not path.exists():
        assert child.poll() is None
    os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
    output, _ = child.communicate(timeout=60)
    assert child.returncode not in (0, None)
    name = {1: "weight server 0", 2: "input worker 0"}[rank]
    assert re.search(rf"{name} \(task {rank} on \S+\) exited without a status: killed, or its host was lost", output)
    (job,) = jobs.listed(home, jobs.FINISHED)
    assert f"; the log is {job.log}. " in output and "the same command resumes from it" in output
    assert job.phase == "FAILED" and name in job.message


# Requests the weight servers, as a weight-streaming run does, then waits like the script above.
ASKING = (
    """
import os, pathlib
folder = pathlib.Path(os.environ["CSRUN_INPUT_FOLDER"])
(folder / "weight-request").touch()
while not (folder / "weight-server-0.json").exists(): os.sched_yield()
"""
    + SAVING
)


def test_a_killed_weight_server_stops_the_launch_after_the_chief_has_saved(started, home: Path, tmp_path: Path) -> None:
    options = ("--weight-servers", "1", "--cpus-per-task", "1", "--local-tasks", "1")
    child = started(*options, "python", "-c", ASKING, str(tmp_path / "checkpoint"), stderr=subprocess.STDOUT)
    wait_for_line(child, "step 1")
    folder = str(jobs.job_folder(home, jobs.listed(home)[0].id))
    words = ["-m", "cerebras_tensorflow.runtime.weight_store.server", folder, "0"]
    (server,) = [
        process for process in psutil.process_iter(["cmdline"]) if (process.info["cmdline"] or [])[1:] == words
    ]
    server.kill()
    output, _ = child.communicate(timeout=60)
    assert child.returncode not in (0, None)
    error = rf"weight server 0 \(task 1 on \S+\) was ended by SIGKILL; its log is {folder}/weight-server-0\.log\. "
    assert re.search(error + ".*the same command resumes from it", output), output
    assert (tmp_path / "checkpoint").read_text() == "saved\n"
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"


def test_the_error_of_a_killed_chief_names_the_log_and_how_to_resume(wse, home: Path) -> None:
    done = wse("bash", "-c", "kill -KILL $$")
    assert done.returncode == 137
    (job,) = jobs.listed(home, jobs.FINISHED)
    assert "the chief was ended by SIGKILL" in done.stderr
    assert f"the log is {job.log}. " in done.stderr and "the same command resumes from it" in done.stderr


def test_an_exit_code_above_128_is_not_reported_as_a_signal(wse, home: Path) -> None:
    done = wse("bash", "-c", "exit 140")
    assert done.returncode == 140
    assert "was ended by" not in done.stderr and "checkpoint" not in done.stderr
    (job,) = jobs.listed(home, jobs.FINISHED)
    assert (job.phase, job.message) == ("FAILED", "exit code 140")


@pytest.mark.parametrize(("code", "name"), [(130, "SIGINT"), (143, "SIGTERM")])
def test_exit_codes_of_stop_signals_record_a_cancelled_job(wse, home: Path, code: int, name: str) -> None:
    assert wse("bash", "-c", f"exit {code}").returncode == code
    (job,) = jobs.listed(home, jobs.FINISHED)
    assert (job.phase, job.message) == ("CANCELLED", f"exit code {code}: stopped by {name}")


def test_a_dry_run_prints_the_launch_of_the_executor_and_the_srun_line(wse, home: Path, executor: str) -> None:
    done = wse("--total-nodes", "4", "--tasks-per-node", "3", "--local-tasks", "2", "--dry-run", "true")
    launching, *others = done.stdout.splitlines()
    assert launching.startswith("Launching: srun ") == (executor == "slurm")
    assert launching.endswith(" true")
    if executor == "embedded":
        assert launching == "Launching: true"
        assert others[0] == "Started on this machine (embedded executor): 1 chief, 2 input worker(s)"
        assert "12 tasks on 4 nodes are folded" in others[1]
        assert others[3].startswith("srun --unbuffered") and others[3].endswith(" true")
    assert others[-3] == "12 tasks:"
    assert not jobs.listed(home)


def test_a_mistyped_option_starts_nothing(wse, home: Path) -> None:
    done = wse("--dry-rum", "true")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["ERROR: Unknown option --dry-rum; did you mean --dry-run?"]
    assert not jobs.listed(home)


def test_sizes_that_contradict_each_other_are_refused(wse, home: Path) -> None:
    done = wse("--input-workers", "2", "--total-nodes", "3", "true")
    assert done.returncode == 1
    assert "--input-workers and --weight-servers are for a launch on one node. With --total-nodes" in done.stderr


def test_labels_and_outcome_of_a_launch_are_recorded(wse, home: Path) -> None:
    wse("--job-labels", "model=gptj,run=1", "true")
    wse("false")
    first, second = jobs.listed(home, jobs.FINISHED)
    assert (first.phase, first.labels) == ("SUCCEEDED", {"model": "gptj", "run": "1"})
    assert (second.phase, second.message) == ("FAILED", "exit code 1")
