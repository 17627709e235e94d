"""Signals that ask a run to stop, while its main thread waits in C code and Python cannot run a handler."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from cerebras_tensorflow.estimator.training.signals import StopSignals
from cerebras_tensorflow.runtime.host import stopping

HANGING = """
import ctypes, logging, sys
from cerebras_tensorflow.estimator.training import signals
signals.END_LIMIT_S = 0.2
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with signals.StopSignals():
    libc.pthread_mutex_lock(mutex)
    print("hangs", flush=True)
    libc.pthread_mutex_lock(mutex)
"""


def test_a_run_that_hangs_reports_the_first_signal_at_once_and_ends_after_the_second(
    tmp_path: Path, warm_python: list[str]
) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    process = subprocess.Popen([*warm_python, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for expected in ("hangs", "SIGTERM received: finishing the step"):
        while expected not in (line := process.stdout.readline()):
            assert line, f"{expected!r} never came"
        process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert "did not end within 0.2 s of the second signal: the process ends without cleaning up" in said
    assert process.returncode == 128 + signal.SIGTERM


def test_a_signal_of_a_forked_child_is_none_of_the_run() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        child = os.fork()
        if not child:
            is_clean = signal.getsignal(signal.SIGTERM) is before
            signal.signal(signal.SIGTERM, lambda *_: os._exit(7 if is_clean else 1))
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert signals.received is None and not stopping.requested.is_set()
