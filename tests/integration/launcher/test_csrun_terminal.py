"""csrun_wse at a terminal: Ctrl-C, Ctrl-Z and fg, input, closed pipes, kills, start-up time."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pexpect

from cerebras_tensorflow.system import jobs

SAVING = """
import signal, sys
asked = []
signal.signal(signal.SIGINT, lambda n, _: asked.append(n))
print("step", 1, flush=True)
while not asked: signal.pause()
print("asked", len(asked), "times", flush=True)
sys.exit(130)
"""


def test_ctrl_c_while_waiting_leaves_the_queue(home: Path, argv) -> None:
    holder = jobs.submit(home, "cs2-embedded", "pipelined")
    holder.wait_for_wafer(lambda: True)
    words = argv("csrun_wse", "true")
    terminal = pexpect.spawn(words[0], words[1:], encoding="utf-8", timeout=30)
    terminal.expect_exact("is busy with job 1")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    holder.finish(jobs.SUCCEEDED)
    assert jobs.record(home, 2).phase == "CANCELLED"


def test_the_command_can_read_from_the_terminal(home: Path, argv) -> None:
    for program in ("csrun_wse", "csrun_cpu"):
        words = argv(program, "python", "-c", "print('got', input('name? '))")
        terminal = pexpect.spawn(words[0], words[1:], encoding="utf-8", timeout=30)
        terminal.expect_exact("name? ")
        terminal.sendline("alice")
        terminal.expect_exact("got alice")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0


PROGRESS = """
from cerebras_tensorflow.progress import Progress
with Progress("Waiting", 10, "steps", done=lambda: 5, clock=iter(range(0, 10**6, 5)).__next__) as progress:
    progress.refresh()
    print("a line of the script", flush=True)
    input("enough? ")
"""


def test_a_progress_line_of_the_chief_is_on_the_terminal_and_not_in_the_log(home: Path, argv) -> None:
    words = argv("csrun_wse", "python", "-c", PROGRESS)
    terminal = pexpect.spawn(words[0], words[1:], encoding="utf-8", timeout=30, dimensions=(24, 100))
    terminal.expect(r"\rWaiting: \[#+ +\]  50 %  5 of 10 steps  \S+  \S+ s left\x1b\[K")
    terminal.expect_exact("\r\x1b[Ka line of the script")  # the line is erased first
    terminal.expect_exact("enough? ")
    terminal.sendline("yes")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    log = Path(jobs.record(home, 1).log).read_text()
    assert "a line of the script\n" in log
    assert "Waiting" not in log


def test_ctrl_z_stops_the_whole_launch_and_fg_continues_it(home: Path, argv) -> None:
    words = argv("csrun_wse", "python", "-c", SAVING)
    shell = pexpect.spawn(
        "bash", ["--norc", "-i"], encoding="utf-8", timeout=30, env={"PATH": "/usr/bin:/bin", "PS1": "$ "}
    )
    shell.expect_exact("$ ")
    exports = f"export CEREBRAS_HOME='{home}' PYTHONPATH='{Path.cwd()}'"
    shell.sendline(exports)
    shell.expect_exact("$ ")
    script = home.parent / "launch.sh"
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    script.write_text(f"exec {quoted}\n")
    shell.sendline(f"bash {script}")
    shell.expect_exact("step 1")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact("$ ")
    shell.sendline("fg")
    shell.expect_exact("bash ")
    # Retry: Ctrl-C reaches the command only once the launcher owns the terminal again.
    deadline = time.monotonic() + 20
    while True:
        shell.sendintr()
        if shell.expect_exact(["asked", pexpect.TIMEOUT], timeout=1) == 0:
            break
        assert time.monotonic() < deadline
    shell.expect_exact("$ ")
    shell.sendline("echo code $?")
    shell.expect_exact("code 130")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)


def test_a_closed_output_pipe_does_not_hang_the_launch(home: Path, argv) -> None:
    words = argv("csrun_wse", "--executor", "embedded", "python", "-c", "for i in range(100000): print(i)")
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert first.stdout is not None
    first.stdout.readline()
    first.stdout.close()
    assert first.wait(timeout=30) != 0


def test_killing_the_launcher_ends_its_command_and_frees_the_system(home: Path, argv) -> None:
    words = argv("csrun_wse", "python", "-c", "import signal; print('step', 1, flush=True); signal.pause()")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as first:
        assert first.stdout is not None
        while "step 1" not in first.stdout.readline():
            continue
        first.kill()
    done = subprocess.run(argv("csrun_wse", "true"), capture_output=True, timeout=30)
    assert done.returncode == 0
    assert [job.phase for job in jobs.listed(home, jobs.FINISHED)] == ["FAILED", "SUCCEEDED"]


def test_the_launcher_starts_fast_and_without_tensorflow(home: Path, argv) -> None:
    code = (
        "import sys, csrun.cli, csrun.launching, csrun.system_cli; print([m for m in sys.modules if 'tensorflow' in m])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'tensorflow'" not in loaded and "tf_keras" not in loaded

    # CPU time, since the machine may be busy; scripts/bench/bench_launcher.py has the wall time.
    def best_s(*words: str) -> float:
        times = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(argv(*words), capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    assert best_s("csrun_wse", "--help") < 0.5
    assert best_s("csrun_wse", "true") < 0.5
