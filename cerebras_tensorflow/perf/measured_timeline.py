"""The timeline of a measured step: ops as TensorFlow recorded them, moves of the store, memory of the process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from cerebras_tensorflow.graph.program import UPDATE_FUNCTION
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


def op_spans(step_stats: Any, graph_def: Any, clock: Clock) -> list[Span]:
    """Return the ops of a step as spans of the compute and update streams.

    An update by a function is the function's ops, with the name of the call: the call waits for the store too.

    Args:
        step_stats: StepStats of TensorFlow's RunMetadata.
        graph_def: The graph of the step.
        clock: Made when the step began.
    """
    functions = [one for one in graph_def.library.function if one.signature.name.startswith(UPDATE_FUNCTION)]
    names = {one.signature.name for one in functions}
    ops = {node.name: node.op for function in functions for node in function.node_def}
    ops |= {node.name: node.op for node in graph_def.node}
    callers = {node.name for node in graph_def.node if "f" in node.attr and node.attr["f"].func.name in names}
    spans: list[Span] = []
    calls: list[Span] = []
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            op = ops.get(node.node_name, "")
            length_s = (node.op_end_rel_micros - node.op_start_rel_micros) / 1e6
            if length_s < _LEAST_SPAN_S or op in _WAITING_OPS:
                continue
            begin_s = (node.all_start_micros + node.op_start_rel_micros) / 1e6 - clock.epoch_s
            name = node.node_name
            stream = UPDATE if op.startswith(_UPDATE_OPS) or name.startswith(UPDATE_FUNCTION) else COMPUTE
            (calls if name in callers else spans).append(Span(stream, name, begin_s, begin_s + length_s))
    return [_named(span, calls) if span.name.startswith(UPDATE_FUNCTION) else span for span in spans]


def _named(span: Span, calls: Sequence[Span]) -> Span:
    """Return an op of a function with the name of its call: of those around it, the one that ended first.

    TensorFlow does not record which call it was; beside others that run, this is a guess.
    """
    around = [call for call in calls if call.begin_s <= span.begin_s and span.end_s <= call.end_s]
    return replace(span, name=min(around, key=lambda call: call.end_s).name) if around else span


def measured_timeline(title: str, spans: Iterable[Span], memory: Iterable[tuple[float, int]] = ()) -> Timeline:
    """Return the timeline of recorded spans and memory samples."""
    return Timeline(title, True, tuple(spans), tuple(memory), "resident set of the process, measured [bytes]")
