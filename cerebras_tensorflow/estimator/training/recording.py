"""Records steps: the ops that TensorFlow ran, the moves of the weight store, and the memory of the process."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.measured_timeline import Clock, MemorySampler, measured_timeline, op_spans
from cerebras_tensorflow.perf.recorded_ops import RecordedOp, recorded_ops
from cerebras_tensorflow.perf.timeline import LOAD, STORE, WIRE, Span, Timeline
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import Move

_STREAMS = {"store": STORE, "receive": WIRE, "exchange": WIRE}  # kinds of moves; all others are loads


class Recording:
    """TensorFlow's profiler and a sampler of memory, on while at least one hook records.

    A process has one such profiler, so the hooks share a Recording. Its events stay in memory until the last hook ends:
    some 30 bytes for each op of a step.
    """

    def __init__(self) -> None:
        self._hooks = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._sampler: MemorySampler | None = None
        self._begin_ns = 0
        self._files: list[tuple[bytes, int]] = []  # what the profiler wrote, and when it began
        self._ops: list[RecordedOp] = []
        self._memory: list[tuple[float, int]] = []

    def begin(self) -> None:
        """Begin to record for one more hook."""
        self._hooks += 1
        if self._hooks == 1:
            self._start()

    def end(self) -> None:
        """End recording for a hook. What was recorded is then there; other hooks go on."""
        self._hooks -= 1
        self._stop()
        if self._hooks:
            self._start()

    def ops(self, begin_s: float, end_s: float) -> list[RecordedOp]:
        """Return the recorded ops that begin in a time [s since the epoch]. It takes milliseconds for 1000 ops."""
        while self._files:
            file, begin_ns = self._files.pop(0)
            self._ops += recorded_ops(tf_private.profile_of(file), begin_ns)
        return [op for op in self._ops if begin_s <= op.begin_s <= end_s]

    def memory(self, begin_s: float, end_s: float) -> list[tuple[float, int]]:
        """Return (time since begin_s [s], bytes) of the samples in a time of time.perf_counter [s]."""
        return [(at_s - begin_s, size) for at_s, size in self._memory if begin_s <= at_s <= end_s]

    def note_memory(self) -> None:
        """Take a sample now, so that each step has one at its begin and at its end."""
        if self._sampler is not None:
            self._sampler.sample()

    def _start(self) -> None:
        self._sampler = MemorySampler()
        folder = tempfile.TemporaryDirectory(prefix="cerebras-profile-")
        self._begin_ns = time.time_ns()
        try:
            tf.profiler.experimental.start(folder.name)
        except tf.errors.OpError as error:
            folder.cleanup()
            run_log.warning("No op is recorded, because the profiler of TensorFlow does not start: %s", error.message)
        else:
            self._folder = folder

    def _stop(self) -> None:
        if self._sampler is not None:
            self._memory += self._sampler.stop()
            self._sampler = None
        if self._folder is None:
            return
        with self._folder as folder:
            self._folder = None
            try:
                tf.profiler.experimental.stop()
                self._files += [
                    (path.read_bytes(), self._begin_ns) for path in sorted(Path(folder).rglob("*.xplane.pb"))
                ]
            except (tf.errors.OpError, OSError) as error:  # somebody else stopped it, or a full disk
                run_log.warning("The recorded ops are lost: %s", error)


class StepRecorder:
    """Records what a session does from its construction until `stop` or `close`.

    Args:
        session: The session.
        recording: Records ops and memory, from before the step until after it.
    """

    def __init__(self, session: ProgramSession, recording: Recording) -> None:
        self._session = session
        self._recording = recording
        self._moves: list[Move] = []
        self._lock = threading.Lock()
        self._begin = self._end = Clock()
        recording.note_memory()
        if session.store is not None:
            session.store.on_move = self._note

    def stop(self) -> None:
        """Stop recording, after the step's writes have arrived."""
        store = self._session.store
        if store is not None:
            store.flush()
        self._recording.note_memory()
        self._end = Clock()
        self.close()

    def timeline(self, title: str) -> Timeline:
        """Return the timeline of the step. Call it after the recording has ended for the caller."""
        begin, end = self._begin, self._end
        ops = self._recording.ops(begin.epoch_s, end.epoch_s)
        spans = op_spans(ops, self._session.program.graph_def, begin)
        specs = self._session.program.stored
        with self._lock:
            for move in self._moves:
                stream = _STREAMS.get(move.kind, LOAD)
                begin_s, end_s = move.begin_s - begin.counter_s, move.end_s - begin.counter_s
                spans.append(Span(stream, specs[move.weight].name, begin_s, end_s, move.num_bytes))
        return measured_timeline(title, spans, self._recording.memory(begin.counter_s, end.counter_s))

    def close(self) -> None:
        """Stop noting moves."""
        if self._session.store is not None:
            self._session.store.on_move = None

    def _note(self, move: Move) -> None:
        with self._lock:
            self._moves.append(move)
