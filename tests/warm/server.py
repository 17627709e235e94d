"""`python -m tests.warm.server FOLDER`: forks children in which TensorFlow and this package are loaded already.

To import them takes three seconds of a CPU, more than most tests that start a training script. Such a script runs here
in a forked child (see client.py). TensorFlow starts threads and looks for devices only when it is used, so a process
that has only imported it can be forked. Tests of the start itself need a real process.

FOLDER gets the socket, and `python`: a program for whoever starts Python by its path, such as csrun. The children have
it as sys.executable. It starts a real Python for options of the interpreter, and if TensorFlow must not be set up.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any

PROGRAM = """#!/bin/sh
case "$1" in
    -c | -m | -W | [!-]*) [ "${{CEREBRAS_TENSORFLOW_AUTOLOAD:-}}" ] || exec {client} "$@" ;;
esac
exec {python} "$@"
"""

LOADED = ("tensorflow", "cerebras_tensorflow.estimator.estimator", "cerebras_tensorflow.runtime.session")


class Server:
    """Forks a child for each connection, and tells the client how it ended. Final."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, socket.socket] = {}
        self._ended, self._signalled = os.pipe()
        os.set_blocking(self._signalled, False)

    def run(self) -> dict[str, Any] | None:
        """Serve until the end of standard input, then kill the children. In a child, return the request."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled)
        with selectors.DefaultSelector() as selector:
            for place in (sys.stdin.fileno(), self._listener, self._ended):
                selector.register(place, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == sys.stdin.fileno():
                        self._kill_all()
                        return None
                    if key.fileobj is self._listener:
                        if (request := self._fork()) is not None:
                            return request
                        selector.register([*self._children.values()][-1], selectors.EVENT_READ)
                    elif key.fileobj == self._ended:
                        os.read(self._ended, 1024)
                        self._reap(selector)
                    else:
                        self._lost(key.fileobj, selector)

    def _fork(self) -> dict[str, Any] | None:
        """Fork a child for the next client. Return the request in the child, None in this process."""
        client, _ = self._listener.accept()
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        with client.makefile("rb") as file:
            request: dict[str, Any] = json.loads(file.read(int.from_bytes(size, "big")))
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (client, self._listener, *self._children.values()):
                other.close()
            os.close(self._ended)
            os.close(self._signalled)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return request
        for stream in streams:
            os.close(stream)
        self._children[child] = client
        with contextlib.suppress(OSError):  # the client was killed meanwhile
            client.sendall(b"%d\n" % child)
        return None

    def _reap(self, selector: selectors.BaseSelector) -> None:
        for child in list(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                client = self._children.pop(child)
                with contextlib.suppress(KeyError):  # already, if its client was killed
                    selector.unregister(client)
                with contextlib.suppress(OSError):
                    client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                client.close()

    def _lost(self, client: Any, selector: selectors.BaseSelector) -> None:
        """A client was killed: kill its child."""
        selector.unregister(client)
        for child, other in self._children.items():
            if other is client:
                os.kill(child, signal.SIGKILL)

    def _kill_all(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def become(request: dict[str, Any], path: list[str]) -> None:
    """Run the request's script in this process as `python` runs it.

    Args:
        request: What the client sent.
        path: sys.path of a Python with an empty PYTHONPATH, without the script's folder.
    """
    words: list[str] = request["words"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.SIG_IGN if request["ignores_interrupt"] else signal.default_int_handler)
    importlib.import_module("numpy").random.seed()
    while words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        del words[:2]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path = [*given, *path]
    for place in given:
        if (customize := Path(place, "sitecustomize.py")).exists():
            runpy.run_path(str(customize))
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if words[0] == "-m":
        sys.argv, sys.path = words[1:], [os.getcwd(), *given, *path]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[0] == "-c":
        sys.argv, sys.path = ["-c", *words[2:]], ["", *given, *path]
        code = compile(words[1], "<string>", "exec")
    else:
        script = Path(words[0])
        main.__file__ = words[0]
        sys.argv, sys.path = words, [str(script.parent.resolve()), *given, *path]
        code = compile(script.read_bytes(), words[0], "exec")
    exec(code, main.__dict__)


def main() -> None:
    """Serve; in a child, run the script and show its error as Python does."""
    for name in LOADED:
        importlib.import_module(name)
    root = str(Path(__file__).parents[2])
    path = [place for place in sys.path if place not in ("", root)]
    gc.collect()
    gc.freeze()
    address, program = (str(Path(sys.argv[1]) / name) for name in ("socket", "python"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    client = shlex.join([sys.executable, "-IS", str(Path(__file__).with_name("client.py")), address])
    Path(program).write_text(PROGRAM.format(client=client, python=shlex.quote(sys.executable)), encoding="utf-8")
    Path(program).chmod(0o755)
    sys.executable = program
    print("ready", flush=True)
    request = Server(listener).run()
    if request is None:
        return
    try:
        become(request, path)
    except Exception as error:  # noqa: BLE001 - the script may raise anything
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
