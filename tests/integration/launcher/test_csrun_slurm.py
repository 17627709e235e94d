"""csrun_wse on a real Slurm: many tasks, scancel, allocations, requests that cannot be met."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, is_complete
from cerebras_tensorflow.system import jobs
from csrun.plan import Request, make_plan
from tests.conftest import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]

LAYOUT = ("--total-nodes", "4", "--single-task-nodes", "2", "--tasks-per-node", "3", "--cpus-per-task", "2")

SAVING = """
import signal, sys
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda n, _: asked.append(n))
print("step", 1, flush=True)
while not asked: signal.pause()
open(sys.argv[1], "a").write("saved\\n")
sys.exit(128 + asked[0])
"""


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Kills launches that a failed test left running."""
    yield
    while _started:
        child = _started.pop()
        if child.poll() is None:
            child.kill()
            child.communicate()


def start(words: list[str]) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    _started.append(child)
    return child


def read_until(child: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert child.stdout is not None
    for line in child.stdout:
        if match := re.fullmatch(pattern, line.strip()):
            return match
    raise AssertionError(f"{pattern!r} never came")


@pytest.mark.parametrize("is_cyclic", [True, False])
def test_slurm_places_every_task_where_the_plan_says(run, home: Path, is_cyclic: bool) -> None:
    words = (*LAYOUT, *(("--cyclic",) if is_cyclic else ()))
    done = run("csrun_wse", "--executor", "slurm", *words, "true")
    assert done.returncode == 0, done.stderr
    folder = jobs.job_folder(home, jobs.listed(home, jobs.FINISHED)[0].id)
    ends = [json.loads(path.read_text()) for path in folder.glob("task-*.json")]
    placed = {end["rank"]: (end["node"], end["role"]) for end in ends}
    plan = make_plan(Request(4, 3, 2, single_task_nodes=2, is_cyclic=is_cyclic), ["true"])
    assert placed == {task.rank: (f"node{task.node}", task.role) for task in plan.tasks}


def test_with_many_tasks_a_signal_still_lets_the_chief_save(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    saved = tmp_path / "checkpoint"
    child = start(argv("csrun_wse", "--executor", "slurm", *LAYOUT, "python", "-c", SAVING, str(saved)))
    read_until(child, "step 1")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == 143
    assert saved.read_text() == "saved\n"
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "CANCELLED"


def test_scancel_lets_the_chief_save(home: Path, argv: Callable[..., list[str]], tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint"
    child = start(argv("csrun_wse", "--executor", "slurm", *LAYOUT, "python", "-c", SAVING, str(saved)))
    slurm_id = read_until(child, r"srun: job (\d+) has been allocated resources").group(1)
    read_until(child, "step 1")
    subprocess.run(["scancel", slurm_id], check=True)
    child.communicate(timeout=30)
    assert saved.read_text() == "saved\n"
    assert child.returncode == 143


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_a_waiting_launch_from_slurms_queue(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    blocker = subprocess.run(
        ["sbatch", "--parsable", "-N4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout.strip()
    try:
        child = start(argv("csrun_wse", "--executor", "slurm", *LAYOUT, "true"))
        ours = read_until(child, r"srun: job (\d+) queued and waiting for resources").group(1)
        child.send_signal(number)
        output, _ = child.communicate(timeout=30)
        assert child.returncode == 128 + number, output
        assert jobs.listed(home, jobs.FINISHED)[0].phase == "CANCELLED"
        pending = ["squeue", "-h", "-t", "PD", "-o", "%i"]
        waiting = subprocess.run(pending, capture_output=True, text=True, check=True).stdout.split()
        assert not [job for job in waiting if job.partition("+")[0] == ours]
    finally:
        subprocess.run(["scancel", blocker], check=True)


def test_a_request_beyond_the_cluster_is_refused(run, home: Path) -> None:
    # Five nodes of four: each component alone fits, so Slurm would queue the job forever.
    for sizes in (("--total-nodes", "99"), ("--total-nodes", "5"), ("--cpus-per-task", "500")):
        done = run("csrun_wse", "--executor", "slurm", *sizes, "true")
        assert done.returncode == 1
        assert "Slurm cannot run this launch on its nodes" in done.stderr
        assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"


def test_a_launch_inside_an_allocation_uses_its_own_sizes(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    words = argv("csrun_wse", "--executor", "slurm", *LAYOUT[:6], "python", "-c", "print('chief', 'ran')")
    script = tmp_path / "job.sh"
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    script.write_text(f"#!/bin/bash\nexec {quoted}\n")
    # A heterogeneous step needs an allocation with the same components.
    sizes = ["-N1", "-n1", ":", "-N1", "-n1", ":", "-N2", "-n6"]
    done = subprocess.run(["salloc", *sizes, "bash", str(script)], capture_output=True, text=True, timeout=60)
    assert "chief ran" in done.stdout, done.stderr
    assert done.returncode == 0


def test_a_killed_worker_task_fails_the_launch(home: Path, argv: Callable[..., list[str]], tmp_path: Path) -> None:
    child = start(argv("csrun_wse", "--executor", "slurm", *LAYOUT, "python", "-c", SAVING, str(tmp_path / "x")))
    read_until(child, "step 1")
    folder = jobs.job_folder(home, jobs.listed(home)[0].id)
    deadline = time.monotonic() + 20
    while not (folder / "task-5.json").exists():
        assert time.monotonic() < deadline
    os.kill(json.loads((folder / "task-5.json").read_text())["pid"], signal.SIGKILL)
    output, _ = child.communicate(timeout=30)
    assert child.returncode not in (0, None)
    assert "input worker 3 (task 5 on node3) exited without a status" in output
    assert f"the log is {folder}/output.log" in output
    assert "the same command resumes from it" in output
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"


def test_auto_finds_slurm(run) -> None:
    done = run(
        "csrun_wse", "python", "-c", "import os; print(os.environ.get('SLURM_PROCID'), os.environ['CSRUN_ROLE'])"
    )
    assert done.stdout.splitlines()[-1] == "0 chief"


@contextmanager
def lost_node(name: str) -> Iterator[None]:
    """Stop all processes of a node, so that it does not answer, as after a power loss; restart it at the end."""
    conf = Path(os.environ["SLURM_CONF"])
    lost = [int((conf.parent / f"slurmd-{name}.pid").read_text())]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process that ends meanwhile
            words = path.read_bytes()
            is_task = words.startswith(b"slurmstepd") or b"csrun.task" in words
            if is_task and f"SLURMD_NODENAME={name}".encode() in (path.parent / "environ").read_bytes():
                lost.append(int(path.parent.name))
    for pid in lost:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in lost:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        environ = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"}
        subprocess.run(["slurmd", "-N", name], check=True, env=environ)


def test_a_lost_node_gives_a_clear_error_and_a_resumable_state(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    child = start(argv("csrun_wse", "--executor", "slurm", *LAYOUT, "python", "-c", SAVING, str(tmp_path / "x")))
    read_until(child, "step 1")
    folder = jobs.job_folder(home, jobs.listed(home)[0].id)
    while not all((folder / f"task-{rank}.json").exists() for rank in (5, 6, 7)):
        assert child.poll() is None
    with lost_node("node3"):
        output, _ = child.communicate(timeout=120)
    assert child.returncode != 0, output
    assert re.search(
        r"Slurm has lost node3, and with it (input worker \d \(task [567] on node3\)(, )?)+; the log is \S+\. ", output
    )
    assert "the same command resumes from it" in output
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"
    again = subprocess.run(
        argv("csrun_wse", "--executor", "slurm", *LAYOUT, sys.executable, "-c", ""), capture_output=True, timeout=120
    )
    assert again.returncode == 0


STEP_BY_STEP = """
import pathlib, sys, time
checkpoint, goal = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("started", "at", step, flush=True)
while not goal.exists() or step < 5:
    step += 1
    draft = checkpoint.with_suffix(".tmp")
    draft.write_text(str(step))
    draft.replace(checkpoint)
    if step == 5: print("step 5", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("node", ["node0", "node2"])
def test_a_launch_that_tolerates_a_lost_node_resumes_on_the_others(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path, node: str
) -> None:
    sizes = ("--total-nodes", "3", "--single-task-nodes", "2", "--tasks-per-node", "2", "--cpus-per-task", "1")
    files = str(tmp_path / "checkpoint"), str(tmp_path / "goal")
    words = ("--executor", "slurm", "--tolerate-node-failure", *sizes, "python", "-c", STEP_BY_STEP, *files)
    child = start(argv("csrun_wse", *words))
    assert read_until(child, r"started at (\d+)").group(1) == "0"
    read_until(child, "step 5")
    with lost_node(node):
        read_until(child, rf"csrun: warning: Slurm has lost {node}[,;] .* Starting again, 1 of at most 3 times")
        assert int(read_until(child, r"started at (\d+)").group(1)) >= 5
        (tmp_path / "goal").touch()
        output, _ = child.communicate(timeout=60)
    assert child.returncode == 0, output
    assert [job.phase for job in jobs.listed(home, jobs.FINISHED)] == ["SUCCEEDED"]


TOY = str(ROOT / "tests/integration/runs/toy_run.py")


def state(number: str) -> str:
    """The state of a job in Slurm; empty once Slurm no longer lists it."""
    asked = subprocess.run(["squeue", "-h", "-o", "%T", "-j", number], capture_output=True, text=True)
    return asked.stdout.strip()


def newest_step(model_dir: Path) -> int:
    """The step of the newest complete checkpoint; -1 if there is none."""
    whole = (path for path in checkpoints_newest_first(str(model_dir)) if is_complete(path))
    return next((int(path.rpartition("-")[2]) for path in whole), -1)


def test_a_requeued_batch_job_resumes_from_its_last_checkpoint(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output, model_dir, script = tmp_path / "output", tmp_path / "model_dir", tmp_path / "job.sh"
    settings = (str(model_dir), "1000000", "epochs=1000000", "pause_s=0.01", "save_every=20", "weight_store=memory")
    launch = argv("csrun_wse", "--executor", "slurm", "python", TOY, *settings)
    script.write_text(f"#!/bin/bash\nexec {shlex.join(launch)}\n")
    output.touch()
    follower = start(["timeout", "240", "tail", "-n", "+1", "-F", str(output)])
    options = ["--parsable", "-N1", "--exclusive", "--requeue", "--open-mode=append", f"--output={output}"]
    number = subprocess.run(["sbatch", *options, script], capture_output=True, text=True, check=True).stdout.strip()
    try:
        read_until(follower, r"INFO:tensorflow:Saving checkpoints for 20 into .*")
        deadline = time.monotonic() + 60
        while (saved := newest_step(model_dir)) < 20:
            assert time.monotonic() < deadline, output.read_text()
        subprocess.run(["scontrol", "requeue", number], check=True)
        deadline = time.monotonic() + 60
        while state(number) != "PENDING":
            assert time.monotonic() < deadline, output.read_text()
        # Nothing runs now. Start the job at once; Slurm delays a requeued job for two minutes. But a node refuses a job
        # whose start has the same second as its end ("Job credential revoked"), and Slurm then kills it.
        last = newest_step(model_dir)
        assert last >= saved
        time.sleep(1.1)
        subprocess.run(["scontrol", "update", f"jobid={number}", "StartTime=now"], check=True)
        restored = read_until(follower, r"INFO:tensorflow:Restoring parameters from .*-(\d+)").group(1)
        assert int(restored) == last
        assert int(read_until(follower, r"INFO:tensorflow:Saving checkpoints for (\d+) into .*").group(1)) > last
    finally:
        subprocess.run(["scancel", number], check=True)
        follower.terminate()
        follower.communicate()
        deadline = time.monotonic() + 60
        while state(number):
            assert time.monotonic() < deadline
