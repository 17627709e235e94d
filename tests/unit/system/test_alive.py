"""The lock that shows that a job is alive resists other users and forged records."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

from cerebras_tensorflow.system import alive


def test_a_lock_is_held_while_a_process_that_inherited_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "x.alive"
    handle = alive.hold(path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(handle,))
    os.close(handle)
    assert alive.is_held(path)
    child.communicate()
    assert not alive.is_held(path)
    assert not alive.is_held(tmp_path / "none")


def test_locks_of_another_user_neither_keep_a_job_alive_nor_stop_one(tmp_path: Path, as_nobody) -> None:
    path = tmp_path / "x.alive"
    os.close(alive.hold(path))
    script = """
import fcntl, struct, sys
def attack():
    file = open(sys.argv[1])
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
    print("held", flush=True)
    sys.stdin.read()
"""
    with as_nobody(script, path) as other:
        assert other.stdout.readline() == "held\n", other.stderr.read()
        assert not alive.is_held(path)
        other.stdin.close()


def test_a_signal_reaches_only_the_holder_of_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.alive"
    handle = alive.hold(path)
    words = [sys.executable, "-c", "input()"]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(handle,))
    stranger = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert not alive.send_signal(path, stranger.pid, signal.SIGKILL)
    assert not alive.send_signal(path, 2**40, signal.SIGKILL)
    assert alive.send_signal(path, holder.pid, signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    stranger.communicate(b"\n")
    assert stranger.returncode == 0
    assert alive.is_held(path)  # by this process
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))
    assert not alive.is_held(path)
    os.close(handle)
    holder.stdin.close()
