"""One login over ssh: a process of `login.py`, on a pseudo-terminal if the client asks for one, else on pipes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebras_tensorflow.config import env
from csrun import interpreters
from csrun.shell import login
from csrun.shell.commands import Login

CHUNK_BYTES = 1 << 14
INPUT_LIMIT_BYTES = 1 << 16
"""Input that is kept while the shell does not read. More input is dropped, as a terminal does."""


async def serve_login(process: Any, home: Path, system: str) -> None:
    """Run the shell for a client (an asyncssh.SSHServerProcess) until it exits or disconnects."""
    who: Login = process.get_extra_info("login")
    words = login.command_line(system, who, [process.command] if process.command else [])
    environ = {**interpreters.for_own_modules(), env.HOME: str(home), "TERM": process.term_type or "dumb"}
    if process.term_type:
        code = await _at_terminal(process, words, environ)
    else:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*words, env=environ, stdin=pipe, stdout=pipe, stderr=pipe)
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        code = await _ended(child, process)
    process.exit(code)


async def _at_terminal(process: Any, words: list[str], environ: dict[str, str]) -> int:
    ours, theirs = pty.openpty()
    columns, rows, *_ = process.term_size
    _set_size(ours, columns, rows)
    try:
        child = await asyncio.create_subprocess_exec(
            *words, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
    finally:
        os.close(theirs)
    loop = asyncio.get_running_loop()
    shown = asyncio.StreamReader()
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(shown), os.fdopen(ours, "rb", 0))
    typing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(os.dup(ours), "wb", 0))
    showing = asyncio.create_task(_show(shown, process))
    feeding = asyncio.create_task(_feed(process, typing, ours))
    try:
        code = await _ended(child, process)
        await showing
    finally:
        feeding.cancel()
        typing.abort()
        reading.close()
    return code


async def _show(shown: asyncio.StreamReader, process: Any) -> None:
    # On Linux, reading a pseudo-terminal whose other side is closed raises an input/output error.
    with suppress(OSError):
        while data := await shown.read(CHUNK_BYTES):
            process.stdout.write(data)


async def _feed(process: Any, typing: Any, terminal: int) -> None:
    import asyncssh

    while True:
        try:
            data = await process.stdin.read(CHUNK_BYTES)
        except asyncssh.TerminalSizeChanged as change:
            _set_size(terminal, change.width, change.height)
            continue
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue
        if not data:
            typing.write(b"\x04")  # end of input, as typed at a terminal
            return
        if typing.get_write_buffer_size() < INPUT_LIMIT_BYTES:
            typing.write(data)


async def _ended(child: asyncio.subprocess.Process, process: Any) -> int:
    """Return the exit code of the shell; kill the shell if the client disconnects or the server ends."""
    ended, gone = asyncio.create_task(child.wait()), asyncio.create_task(process.wait_closed())
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
    code = await ended
    return code if code >= 0 else 128 - code


def _set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0))
