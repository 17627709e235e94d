"""Runs one child process in the foreground: passes each signal on once, relays and logs output, returns how it ended.

The child leads its own process group, which has the terminal while it runs. So a Ctrl-C reaches the child once, from
the terminal. A signal to the launcher, or to the launcher's group, also reaches the child once, from this module.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.config import env
from csrun.relay import Relay

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
NOT_FOUND = 127
NOT_EXECUTABLE = 126


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Its exit code; 128 + n if signal n ended it.
        signal: Number of the signal that ended it; 0 if it ended by itself.
    """

    code: int
    signal: int = 0


class CommandError(Exception):
    """A command that failed to start, or a launch that failed; `exit_code` is what the launcher returns."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    log: Path | None = None,
    keep_open: Sequence[int] = (),
    kill_after_s: Callable[[], float | None] = lambda: None,
    has_failed: Callable[[], bool] = lambda: False,
    stop: Callable[[int, signal.Signals], None] | None = None,
    kill: Callable[[int], None] | None = None,
) -> Ended:
    """Run a command to its end and return how it ended.

    The first SIGINT, SIGTERM or SIGHUP is passed on (SIGHUP as SIGTERM), so that the command can save and stop. The
    second one kills the command. If this process is killed, the kernel sends the child a SIGTERM.

    Args:
        argv: The command; no shell interprets it.
        environ: Its whole environment.
        log: File that gets a copy of the output. None: the child writes directly to this process's output, which may be
            a terminal.
        keep_open: File descriptors that the child inherits, besides the standard ones.
        kill_after_s: Called after the first signal; returns the time until the child is killed [s], or None for never.
        has_failed: Called when any child of this process has ended; True stops the command, as a SIGTERM does.
        stop: Takes the child's process id and a signal, and asks the child to stop. By default the signal goes to the
            child's group. With a `stop` function the child does not get the terminal: no signals and no input.
        kill: Takes the child's process id and ends the child. By default SIGKILL goes to its group.

    Raises:
        CommandError: If the command cannot be started.
    """
    # The signal handler writes to a pipe, so a signal just before `select` still wakes it up.
    waker, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(waker, False)
    received: list[int] = []
    with ExitStack() as stack:
        stack.callback(os.close, waker)
        stack.callback(os.close, wakeup)
        stack.enter_context(_handlers({number: lambda n, _: received.append(n) for number in _not_ignored(STOPPING)}))
        stack.enter_context(_handlers({signal.SIGCHLD: lambda *_: None, signal.SIGCONT: lambda *_: None}))
        stack.enter_context(_handlers({signal.SIGTTOU: signal.SIG_IGN}))
        previous = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, previous)
        # With a `stop` function, the terminal's Ctrl-C must not reach the child directly.
        terminal = _own_terminal() if stop is None else None
        stdin = subprocess.DEVNULL if stop is not None and os.isatty(0) else None
        child = _start(argv, environ, log is not None, keep_open, terminal, stdin)
        if terminal is not None:
            stack.callback(os.tcsetpgrp, terminal, os.getpgrp())
        return _attend(
            child,
            waker,
            log,
            terminal,
            _Stopping(child.pid, received, kill_after_s, has_failed, stop or _signal_group, kill or _kill_group),
        )


def _start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    is_piped: bool,
    keep_open: Sequence[int],
    terminal: int | None,
    stdin: int | None,
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None, use_errno=True)
    launcher = os.getpid()
    defaults = (*_not_ignored(STOPPING), signal.SIGTTOU)

    def prepare() -> None:
        os.setpgid(0, 0)
        if terminal is not None:
            os.tcsetpgrp(terminal, os.getpgrp())
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # the launcher died before prctl, so no SIGTERM will come
            os._exit(128 + signal.SIGTERM)

    environ = dict(environ)
    reader, writer = _error_pipe(environ) if is_piped else (None, None)
    try:
        child = subprocess.Popen(
            list(argv),
            env=environ,
            stdin=stdin,
            stdout=subprocess.PIPE if is_piped else None,
            stderr=writer,
            pass_fds=tuple(keep_open),
            preexec_fn=prepare,
        )
    except OSError as exc:
        if reader is not None:
            os.close(reader)
        if isinstance(exc, FileNotFoundError):
            raise CommandError(f"{argv[0]}: command not found", NOT_FOUND) from exc
        raise CommandError(f"{argv[0]}: cannot be executed: {exc.strerror}", NOT_EXECUTABLE) from exc
    finally:
        if writer is not None:
            os.close(writer)
    if reader is not None:
        child.stderr = os.fdopen(reader, "rb")
    return child


def _error_pipe(environ: dict[str, str]) -> tuple[int, int]:
    """Return both ends of a pipe for a child's standard error, and tell the child that it leads to the terminal."""
    reader, writer = os.pipe()
    if env.PROGRESS in environ:
        environ[env.PROGRESS] = env.progress_through(writer, environ[env.PROGRESS])
    return reader, writer


@dataclass
class _Stopping:
    """Stops a child: asks it at the first signal, kills it at the second one or when its time is up."""

    pid: int
    received: list[int]
    kill_after_s: Callable[[], float | None]
    has_failed: Callable[[], bool]
    stop: Callable[[int, signal.Signals], None]
    kill: Callable[[int], None]
    passed_on: int = 0
    deadline: float | None = None

    def timeout_s(self) -> float | None:
        """Return how long to wait before `act` must be called [s]; None: until the next event."""
        if not self.received and self.has_failed():
            self.received.append(signal.SIGTERM)
        if self.passed_on < len(self.received):
            return 0.0
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def act(self) -> None:
        """Pass on the signals received since the last call."""
        while self.passed_on < len(self.received):
            if self.passed_on == 0:
                self.stop(self.pid, signal.SIGINT if self.received[0] == signal.SIGINT else signal.SIGTERM)
                grace_s = self.kill_after_s()
                self.deadline = None if grace_s is None else time.monotonic() + grace_s
            else:
                self.kill(self.pid)
            self.passed_on += 1
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.kill(self.pid)
            self.deadline = None


def _attend(
    child: subprocess.Popen[bytes], waker: int, log: Path | None, terminal: int | None, stopping: _Stopping
) -> Ended:
    """Relay output and signals until the child has ended."""
    ended: Ended | None = None
    pipes = ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
    with selectors.DefaultSelector() as selector, Relay(selector, pipes, log) as relay:
        selector.register(waker, selectors.EVENT_READ)
        while ended is None:
            for key, _ in selector.select(stopping.timeout_s()):
                if key.fd == waker:
                    _drain(waker)
                else:
                    relay.pass_on(key)
            stopping.act()
            ended = _reap(child, terminal)
        # As under Slurm, processes that the command left behind are killed. Their last output is still in the pipes.
        _kill_group(child.pid)
        selector.unregister(waker)
        relay.drain()
    return ended


def _reap(child: subprocess.Popen[bytes], terminal: int | None) -> Ended | None:
    """Return how the child has ended, None if it still runs. If it was stopped (Ctrl-Z), stop this process too."""
    pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        if terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp():
            os.tcsetpgrp(terminal, child.pid)  # `fg` has brought the launcher to the foreground
        return None
    if os.WIFSTOPPED(status):
        if terminal is not None:
            os.tcsetpgrp(terminal, os.getpgrp())
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        if terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp():
            os.tcsetpgrp(terminal, child.pid)
        _signal_group(child.pid, signal.SIGCONT)
        return None
    child.returncode = os.waitstatus_to_exitcode(status)
    return Ended(child.returncode) if child.returncode >= 0 else Ended(128 - child.returncode, -child.returncode)


def _not_ignored(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Return the signals that the parent process does not ignore; nohup, for one, ignores SIGHUP."""
    return tuple(number for number in signals if signal.getsignal(number) is not signal.SIG_IGN)


def _own_terminal() -> int | None:
    """Return standard input if it is a terminal and this process is in its foreground; else None."""
    try:
        return 0 if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp() else None
    except OSError:
        return None


def _drain(handle: int) -> None:
    with suppress(BlockingIOError):
        while os.read(handle, 4096):
            continue


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _kill_group(group: int) -> None:
    _signal_group(group, signal.SIGKILL)


@contextmanager
def _handlers(handlers: Mapping[int, object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
