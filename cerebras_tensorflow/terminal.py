"""Keeps the terminal clean: drops TensorFlow's start-up noise, and shows our errors in one line.

`import cerebras_tensorflow` sets this up, so it works under plain `python` and in a launch of csrun.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError

if TYPE_CHECKING:
    from types import TracebackType

NOISE = (
    "All log messages before absl::InitializeLog",
    "oneDNN custom operations are on",
    "rounding errors from different computation orders",
    "Could not find cuda drivers on your machine",
    "TensorFlow binary is optimized",
    "To enable the following instructions:",
    r"Unable to register cu\(DNN\|FFT\|BLAS\) factory",
    "computation[_ ]placer.* already registered",
    "Could not find TensorRT",
    "failed call to cuInit",
    "kernel driver does not appear to be running",
    "Could not load dynamic library 'lib\\(cudart\\|nvinfer\\)",
    "Ignore above cudart dlerror",
)
"""Lines that TensorFlow 2.15 to 2.21 print at start on a machine without a GPU, as sed patterns."""

GPU_DEVICES = ("nvidiactl", "nvidia0", "kfd", "dxg")
"""Device files of GPU drivers in /dev. If one exists, a message about the driver is not noise."""

TRACEBACK_FILE = "traceback.log"
END_TIMEOUT_S = 5.0


def set_up() -> None:
    """Show our uncaught errors in one line. At a prompt, or with CEREBRAS_DEBUG=1, Python shows the traceback."""
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1") and not sys.flags.interactive:
        sys.excepthook = show_uncaught


def show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one of our errors as its text and the line of the script; print any other error as Python does.

    The traceback goes into the folder of the launch, if this process belongs to one.
    """
    if not isinstance(error, CerebrasError) or env.is_debug():
        sys.__excepthook__(kind, error, trace)
        return
    import traceback

    place = _last_line_of_script(trace)
    kept = _keep_traceback("".join(traceback.format_exception(kind, error, trace)))
    hint = f"the traceback is in {kept}" if kept else f"{env.DEBUG}=1 shows the traceback"
    sys.stderr.write("".join(traceback.format_exception_only(kind, error)))
    sys.stderr.write(f"({place}{hint})\n")


def _last_line_of_script(trace: TracebackType | None) -> str:
    """Return the deepest line of the user's main script in a traceback; empty if there is none."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    line = 0
    while trace is not None:
        if main is not None and trace.tb_frame.f_code.co_filename == main:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{os.path.basename(str(main))}, line {line}; " if line else ""


def _keep_traceback(text: str) -> Path | None:
    """Append a traceback to the file in the launch's folder, and return the file; None outside a launch."""
    try:
        folder = env.read().input_folder
    except ValueError:
        return None
    if folder is None:
        return None
    path = folder / TRACEBACK_FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return path


@contextmanager
def quiet_import() -> Iterator[None]:
    """Drop TensorFlow's start-up noise while it is imported in this context; all other lines reach stderr.

    C++ code prints these lines, some of them before TensorFlow reads TF_CPP_MIN_LOG_LEVEL. So standard error goes
    through `sed`. Because `sed` is a separate process, lines that TensorFlow prints before it aborts are not lost. If
    the user asks for all lines, with level 0, nothing is filtered.
    """
    if env.shows_all_tensorflow_lines():
        yield
        return
    with env.tensorflow_log_level(), _filtered_stderr(NOISE):
        yield
        _look_for_gpus()


@contextmanager
def _filtered_stderr(patterns: Sequence[str]) -> Iterator[None]:
    import subprocess

    deletions = [word for pattern in patterns for word in ("-e", f"/{pattern}/d")]
    _flush_stderr()
    with ExitStack() as stack:
        try:
            own = os.dup(2)
            stack.callback(os.close, own)
            # In its own session, Ctrl-C does not end the filter, so that it still passes on our last lines.
            sed = subprocess.Popen(
                ["sed", "-u", *deletions], stdin=subprocess.PIPE, stdout=own, stderr=own, start_new_session=True
            )
        except OSError:  # standard error is closed, or sed is missing: show the noise
            sed = None
        if sed is None:
            yield
            return
        assert sed.stdin is not None
        os.dup2(sed.stdin.fileno(), 2)
        sed.stdin.close()
        try:
            yield
        finally:
            _flush_stderr()
            os.dup2(own, 2)
            # If a process that TensorFlow has started still holds the pipe, the filter stays for that process.
            with suppress(subprocess.TimeoutExpired):
                sed.wait(END_TIMEOUT_S)


def _look_for_gpus() -> None:
    """If no GPU driver is installed, make TensorFlow look for GPUs now, so that the filter drops its message."""
    if any(os.path.exists(f"/dev/{name}") for name in GPU_DEVICES):
        return
    with suppress(ImportError, AttributeError, RuntimeError):
        tf_private.list_physical_devices()


def _flush_stderr() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
