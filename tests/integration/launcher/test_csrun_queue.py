"""The queue and the state under load and under kill -9."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebras_tensorflow.system import jobs, registry
from cerebras_tensorflow.system.state import activated

# Fails if another job is inside. The pause gives a second job time to collide.
ALONE = """
import fcntl, os, sys, time
handle = os.open(f"{sys.argv[1]}/inside", os.O_CREAT | os.O_WRONLY)
fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
with open(f"{sys.argv[1]}/diary", "a") as diary:
    diary.write(f"{os.environ['CSRUN_JOB_ID']}\\n")
time.sleep(0.02)
"""


@pytest.mark.slow
def test_fifty_launches_run_one_at_a_time_in_order_even_if_some_are_killed(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    rng = random.Random(5)
    with registry.find().run("pipelined"):
        children = [
            subprocess.Popen(
                argv("csrun_wse", "python", "-c", ALONE, str(tmp_path)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
            for _ in range(50)
        ]
        deadline = time.monotonic() + 120
        while len(queued := jobs.listed(home, (jobs.QUEUED,))) < 50:
            assert time.monotonic() < deadline
            assert all(child.poll() is None for child in children)
        pids = {job.pid: job for job in queued}
        # Kill some while all wait: these can never have run.
        waiting = rng.sample(children, 8)
        for child in waiting:
            child.kill()
            child.wait()
    diary = tmp_path / "diary"
    # Kill one more, waiting or running, each time three more jobs have run.
    running: list[subprocess.Popen[bytes]] = []
    for passed in range(3, 24, 3):
        while len(diary.read_text().split() if diary.exists() else []) < passed:
            assert time.monotonic() < deadline + 240
        alive = [child for child in children if child.poll() is None]
        victim = min(alive, key=lambda child: pids[child.pid].number) if passed % 2 else rng.choice(alive)
        victim.kill()
        running.append(victim)
    for child in children:
        child.wait(timeout=240)
    never = {pids[child.pid].number for child in waiting}
    perhaps = {pids[child.pid].number for child in running}
    entered = [int(line) for line in diary.read_text().split()]
    assert entered == sorted(set(entered))
    assert {job.number for job in queued} - never - perhaps <= set(entered) <= {job.number for job in queued} - never
    killed = {pids[child.pid].number for child in children if child.returncode == -signal.SIGKILL}
    assert never <= killed <= never | perhaps
    assert all(child.returncode == 0 for child in children if pids[child.pid].number not in killed)
    records = {job.number: job.phase for job in jobs.listed(home, (*jobs.LIVE, *jobs.FINISHED))}
    # The first job is the one that held the system.
    assert {number for number, phase in records.items() if phase != jobs.SUCCEEDED} <= killed
    assert never <= {number for number, phase in records.items() if phase == jobs.FAILED}


@pytest.mark.slow
def test_the_state_stays_readable_after_two_hundred_kills(home: Path) -> None:
    rng = random.Random(7)
    code = (
        "import sys; from pathlib import Path; from cerebras_tensorflow.system import jobs, registry, state\n"
        "home = Path(sys.argv[1]); print(flush=True)\n"
        "while True:\n"
        "    registry.change(home, 'cs2-embedded', state.to_standby, 'standby')\n"
        "    registry.change(home, 'cs2-embedded', lambda s: state.activated(s, 0.0), 'activate')\n"
        "    with registry.find().run('pipelined'): pass\n"
    )
    for _ in range(200):
        child = subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            deadline = time.monotonic() + rng.uniform(0, 0.05)
            while time.monotonic() < deadline:
                continue
            child.send_signal(signal.SIGKILL)
        system = registry.find_here().state
        if system.is_standby:
            registry.change(home, system.name, lambda state: activated(state, 0.0), "activate")
        assert all(job.phase in jobs.FINISHED for job in jobs.listed(home, (*jobs.LIVE, *jobs.FINISHED)))
    with registry.find().run("pipelined") as job:
        assert job.record.phase == jobs.RUNNING
