"""The timeline of a measured step: ops as TensorFlow recorded them, moves of the store, memory of the process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from cerebras_tensorflow.perf.timeline import COMPUTE, UPDATE, Span, Timeline

_LEAST_SPAN_S = 5e-6  # shorter ops are left out: there are many, and they do not matter
_SAMPLE_S = 0.005
_UPDATE_OPS = ("ResourceApply", "ResourceSparseApply", "ResourceScatter", "Assign")
_WAITING_OPS = frozenset({"PyFunc"})  # store calls; the store's own record leaves out the time spent waiting


class Clock:
    """The start of a step, on both clocks that the records use."""

    def __init__(self) -> None:
        self.counter_s = time.perf_counter()
        self.epoch_s = time.time()


class MemorySampler:
    """Samples the process's resident set in a background thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[tuple[float, int], ...]:
        """Stop sampling. Return (time since the start of the step [s], bytes) of each sample."""
        self._stop.set()
        self._thread.join()
        return tuple(self._samples)

    def _run(self) -> None:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", "rb", buffering=0) as file:
            while True:
                resident = int(os.pread(file.fileno(), 200, 0).split()[1]) * page_bytes
                self._samples.append((time.perf_counter() - self._clock.counter_s, resident))
                if self._stop.wait(_SAMPLE_S):
                    return


def op_spans(step_stats: Any, ops: Mapping[str, str], clock: Clock) -> list[Span]:
    """Return the ops of a step as spans of the compute and update streams.

    Args:
        step_stats: StepStats of TensorFlow's RunMetadata.
        ops: Op type by node name.
        clock: Made when the step began.
    """
    spans = []
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            op = ops.get(node.node_name, "")
            length_s = (node.op_end_rel_micros - node.op_start_rel_micros) / 1e6
            if length_s < _LEAST_SPAN_S or op in _WAITING_OPS:
                continue
            begin_s = (node.all_start_micros + node.op_start_rel_micros) / 1e6 - clock.epoch_s
            stream = UPDATE if op.startswith(_UPDATE_OPS) else COMPUTE
            spans.append(Span(stream, node.node_name, begin_s, begin_s + length_s))
    return spans


def measured_timeline(title: str, spans: Iterable[Span], memory: Iterable[tuple[float, int]] = ()) -> Timeline:
    """Return the timeline of recorded spans and memory samples."""
    return Timeline(title, True, tuple(spans), tuple(memory), "resident set of the process, measured [bytes]")
