"""The timeline of a measured step: ops as TensorFlow recorded them, moves of the store, memory of the process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Any

from cerebras_tensorflow.graph.program import UPDATE_FUNCTION
from cerebras_tensorflow.perf.recorded_ops import RecordedOp
from cerebras_tensorflow.perf.timeline import COMPUTE, UPDATE, Span, Timeline

_LEAST_SPAN_S = 5e-6  # shorter ops are left out: there are many, and they do not matter
_SAMPLE_S, _LONGEST_SAMPLE_S = 0.005, 0.05  # between samples; the longest after 2.5 s
_UPDATE_OPS = ("ResourceApply", "ResourceSparseApply", "ResourceScatter", "Assign")
_WAITING_OPS = frozenset({"PyFunc"})  # store calls; the store's own record leaves out the time spent waiting


class Clock:
    """A moment, on both clocks that the records use."""

    def __init__(self) -> None:
        self.counter_s = time.perf_counter()
        self.epoch_s = time.time()


class MemorySampler:
    """Samples the process's resident set in a thread, less often as time passes: a sample costs 0.1 ms."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._file = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115 - until `stop`
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._thread.start()

    def sample(self) -> None:
        """Take a sample."""
        resident = int(os.pread(self._file.fileno(), 200, 0).split()[1]) * self._page_bytes
        self._samples.append((time.perf_counter(), resident))

    def stop(self) -> list[tuple[float, int]]:
        """Stop sampling. Return (time.perf_counter [s], bytes) of each sample."""
        self._stop.set()
        self._thread.join()
        self._file.close()
        return sorted(self._samples)

    def _run(self) -> None:
        begin_s = time.perf_counter()
        wait_s = _SAMPLE_S
        while not self._stop.wait(wait_s):
            self.sample()
            wait_s = min(max(_SAMPLE_S, (time.perf_counter() - begin_s) / 50), _LONGEST_SAMPLE_S)


def op_spans(ops: Iterable[RecordedOp], graph_def: Any, clock: Clock) -> list[Span]:
    """Return the ops of a step as spans of the compute and update streams.

    An op of a function that updates a weight has the name of the call, which names the weight.

    Args:
        ops: The ops.
        graph_def: The graph of the step.
        clock: Made when the step began.
    """
    functions = [one for one in graph_def.library.function if one.signature.name.startswith(UPDATE_FUNCTION)]
    names = {one.signature.name for one in functions}
    updates = {node.name for node in graph_def.node if "f" in node.attr and node.attr["f"].func.name in names}
    spans: list[Span] = []
    for op in ops:
        if op.end_s - op.begin_s < _LEAST_SPAN_S or op.kind in _WAITING_OPS:
            continue
        is_in_update = op.call in updates
        stream = UPDATE if is_in_update or op.kind.startswith(_UPDATE_OPS) else COMPUTE
        name = str(op.call) if is_in_update else op.name
        spans.append(Span(stream, name, op.begin_s - clock.epoch_s, op.end_s - clock.epoch_s))
    return spans


def measured_timeline(title: str, spans: Iterable[Span], memory: Iterable[tuple[float, int]] = ()) -> Timeline:
    """Return the timeline of recorded spans and memory samples."""
    return Timeline(title, True, tuple(spans), tuple(memory), "resident set of the process, measured [bytes]")
