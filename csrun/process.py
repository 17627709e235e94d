"""One child process in the foreground: signals passed on exactly once, its output relayed and kept, its exit code.

The child leads a process group of its own, which has the terminal while it runs. So the child gets a Ctrl-C once, from
the terminal. It gets a signal to the launcher, or to the launcher's whole group, once, from here.
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

from csrun.relay import Relay

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
NOT_FOUND = 127
NOT_EXECUTABLE = 126


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Its exit code, 128 + n when signal n ended it.
        signal: That n; 0 when it ended by itself, with whatever code.
    """

    code: int
    signal: int = 0


class CommandError(Exception):
    """A command that could not be started; `exit_code` is what a shell would give."""

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

    The first SIGINT, SIGTERM or SIGHUP is passed on (a hang-up as SIGTERM), so that the command can save and stop; the
    next one kills it. When this process is killed itself, the kernel sends the child a SIGTERM.

    Args:
        argv: The command; never goes through a shell.
        environ: Its whole environment.
        log: File that gets a copy of the output. None: the child writes to this process's own output, maybe a terminal.
        keep_open: File descriptors that the child inherits, besides the standard ones.
        kill_after_s: Asked after the first signal: time until the child is killed anyway [s], or None.
        has_failed: Asked whenever a child of this process has ended: True stops the command, as by SIGTERM.
        stop: Asks the child, by its process number, to stop for a signal; by default the signal goes to its group. A
            child with such a way of its own does not have the terminal, neither for signals nor to read from.
        kill: Ends the child; by default SIGKILL goes to its group.

    Raises:
        CommandError: If the command cannot be started.
    """
    # Waking up by file descriptor: a signal that arrives between two instructions is not lost.
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
        # A child that is asked to stop in a way of its own must not get the terminal's Ctrl-C past that way.
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
        if os.getppid() != launcher:  # it died before the line above
            os._exit(128 + signal.SIGTERM)

    pipe = subprocess.PIPE if is_piped else None
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdin=stdin,
            stdout=pipe,
            stderr=pipe,
            pass_fds=tuple(keep_open),
            preexec_fn=prepare,
        )
    except FileNotFoundError as exc:
        raise CommandError(f"{argv[0]}: command not found", NOT_FOUND) from exc
    except OSError as exc:
        raise CommandError(f"{argv[0]}: cannot be executed: {exc.strerror}", NOT_EXECUTABLE) from exc


@dataclass
class _Stopping:
    """How a child is asked to stop: at the first signal, and killed at the next one or when its time is up."""

    pid: int
    received: list[int]
    kill_after_s: Callable[[], float | None]
    has_failed: Callable[[], bool]
    stop: Callable[[int, signal.Signals], None]
    kill: Callable[[int], None]
    passed_on: int = 0
    deadline: float | None = None

    def timeout_s(self) -> float | None:
        """Return how long nothing has to be done [s]; None: until something happens."""
        if not self.received and self.has_failed():
            self.received.append(signal.SIGTERM)
        if self.passed_on < len(self.received):
            return 0.0
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def act(self) -> None:
        """Pass on what has been received since the last time."""
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
        # What a task leaves behind ends with it, as under Slurm; and what it has written is still in the pipes.
        _kill_group(child.pid)
        selector.unregister(waker)
        relay.drain()
    return ended


def _reap(child: subprocess.Popen[bytes], terminal: int | None) -> Ended | None:
    """Return how the child has ended, if it has; stop together with it if it has been stopped (Ctrl-Z)."""
    pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        if terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp():
            os.tcsetpgrp(terminal, child.pid)  # brought back to the foreground by `fg`
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
    """Return the signals that the parent process has not switched off, as nohup does with SIGHUP."""
    return tuple(number for number in signals if signal.getsignal(number) is not signal.SIG_IGN)


def _own_terminal() -> int | None:
    """Return the standard input when it is a terminal that this process may hand on, i.e. is in its foreground."""
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
