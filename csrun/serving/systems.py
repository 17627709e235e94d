"""The server's side of runs on other hosts: it holds one job per run until the run ends or disconnects."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import ExecModeError, SystemStateError
from cerebras_tensorflow.system import jobs, protocol, registry, remote
from cerebras_tensorflow.system.database import RecordsError
from cerebras_tensorflow.system.reminder import Reminder
from cerebras_tensorflow.text import one_line

NAME_LIMIT = 64
DESCRIPTION_LIMIT = 4096
LABELS_LIMIT = 64

PROTOCOL = protocol.load(remote.PROTO)
protos = PROTOCOL.messages


class Systems:
    """Lets other hosts run on one system of a home. Final.

    Args:
        home: Folder of the systems and jobs.
        name: Name of the system.
    """

    def __init__(self, home: Path, name: str) -> None:
        self._home = home
        self._name = name

    def Show(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Return the system."""
        state = registry.read(self._home, self._name)
        return protos.SystemMessage(name=state.name, execution_mode=state.execution_mode)

    def Run(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Hold the system while one run of another host lasts."""
        begin = next(requests).begin
        if begin.execution_mode not in env.EXECUTION_MODES:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown execution mode {begin.execution_mode!r}")
        host = context.peer().rsplit(":", 1)[0].partition(":")[2]
        user = f"{one_line(begin.user)[:NAME_LIMIT] or 'unknown'}@{host}"
        description = begin.description[:DESCRIPTION_LIMIT]
        labels = {key[:NAME_LIMIT]: value[:NAME_LIMIT] for key, value in list(begin.labels.items())[:LABELS_LIMIT]}
        job = jobs.submit(self._home, self._name, begin.execution_mode, description, labels, user)
        phase, message = jobs.FAILED, "the client disconnected before the end of the run"
        try:
            ended = _first_end(requests)
            said: list[str] = []
            reminder = Reminder(said.append)
            while (
                waiting := job.try_start(lambda: registry.admit(self._home, self._name, begin.execution_mode))
            ) is not None:
                reminder.note(waiting.reason)
                if said:
                    yield protos.RunEvent(waiting_for=said.pop())
                if not context.is_active() or _got(ended, waiting.look_again_s) is not None:
                    return
            yield protos.RunEvent(job_id=job.id, job_number=job.number)
            is_cancel_sent = False
            while (end := _got(ended, jobs.POLL_S)) is None:
                if job.record.is_cancel_requested and not is_cancel_sent:
                    yield protos.RunEvent(is_cancelled=True)
                    is_cancel_sent = True
            if end.phase in jobs.FINISHED:
                phase, message = end.phase, end.message
        except ExecModeError as exc:
            message = str(exc)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        except SystemStateError as exc:
            message = str(exc)
            context.abort(grpc.StatusCode.ABORTED, message)
        finally:
            with suppress(RecordsError):  # the disk is full; the wafer is free nevertheless
                job.finish(phase, message)


def add_to(server: grpc.Server, home: Path, name: str) -> None:
    """Make a gRPC server answer for a system."""
    PROTOCOL.services["Systems"].add_to(server, Systems(home, name))


def _first_end(requests: Iterator[Any]) -> queue.SimpleQueue[Any]:
    """Return a queue that gets the client's `End`; an empty `End` if the client disconnects without one."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        end = protos.End()
        with suppress(Exception):  # grpc raises a bare Exception when the call is cancelled
            end = next(requests).end
        ended.put(end)

    threading.Thread(target=read, daemon=True).start()
    return ended


def _got(ended: queue.SimpleQueue[Any], timeout_s: float) -> Any:
    try:
        return ended.get(timeout=timeout_s)
    except queue.Empty:
        return None
