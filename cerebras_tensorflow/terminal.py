"""What reaches the user's terminal: no start-up noise of TensorFlow, and errors of ours in one line.

`import cerebras_tensorflow` sets this up, so it holds for a script under plain `python` as for a launch of csrun.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
"""Lines that TensorFlow 2.15 to 2.21 write while they start on a machine without a GPU, as patterns of sed."""

GPU_DEVICES = ("nvidiactl", "nvidia0", "kfd", "dxg")
"""Device files of GPU drivers, below /dev. Where there is one, a complaint about the driver is no noise."""

TRACEBACK_FILE = "traceback.log"
END_TIMEOUT_S = 5.0


def set_up() -> None:
    """Show an uncaught error of ours in one line. At a prompt, and with CEREBRAS_DEBUG=1, Python's own way stays."""
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1") and not sys.flags.interactive:
        sys.excepthook = show_uncaught


def show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of ours as its last line, with the line of the script; anything else as Python does.

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
    """Return the deepest line of the user's own main script in a traceback, empty if it has none."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    line = 0
    while trace is not None:
        if main is not None and trace.tb_frame.f_code.co_filename == main:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{os.path.basename(str(main))}, line {line}; " if line else ""


def _keep_traceback(text: str) -> Path | None:
    """Add a traceback to the file in the launch's folder, and return the file; None if this is no launch."""
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
    """Import TensorFlow within this context: its start-up noise is dropped, everything else still reaches stderr.

    The lines come from C++, some of them before TensorFlow reads TF_CPP_MIN_LOG_LEVEL. So standard error goes through
    `sed` meanwhile. That is a process of its own: what TensorFlow says before it aborts is not lost. A level that the
    user has set wins, and nothing is filtered.
    """
    if env.has_tensorflow_log_level():
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
            # A session of its own: a Ctrl-C ends us and not the filter, which would take our last words with it.
            sed = subprocess.Popen(
                ["sed", "-u", *deletions], stdin=subprocess.PIPE, stdout=own, stderr=own, start_new_session=True
            )
        except OSError:  # standard error is closed, or there is no sed: the noise is shown
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
            # A process that TensorFlow has started may still hold the pipe; it keeps the filter then.
            with suppress(subprocess.TimeoutExpired):
                sed.wait(END_TIMEOUT_S)


def _look_for_gpus() -> None:
    """Have TensorFlow look for GPUs now, where no driver is installed, so that its complaint falls into the filter."""
    if any(os.path.exists(f"/dev/{name}") for name in GPU_DEVICES):
        return
    # Not tf.config.list_physical_devices: that makes the eager context, which a script may want to configure.
    with suppress(ImportError, AttributeError, RuntimeError):
        from tensorflow.python import pywrap_tfe

        list_devices: Any = pywrap_tfe.TF_ListPhysicalDevices
        list_devices()


def _flush_stderr() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
