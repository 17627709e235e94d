"""A hook that records one training step: its loads, ops, updates and stores over time, and the memory in use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.chrome_trace import write_chrome_trace
from cerebras_tensorflow.perf.measured_timeline import Clock, MemorySampler, measured_timeline, op_spans
from cerebras_tensorflow.perf.picture import write_picture
from cerebras_tensorflow.perf.timeline import LOAD, STORE, WIRE, Span, Timeline
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import Move

v1 = tf.compat.v1


_STREAMS = {"store": STORE, "receive": WIRE, "exchange": WIRE}  # kinds of moves; all others are loads


class StepRecorder:
    """Records what a session does from its construction until `stop` or `close`.

    Args:
        session: The session. Pass `options` and a RunMetadata to its next run.
    """

    def __init__(self, session: ProgramSession) -> None:
        # The same records of ops as FULL_TRACE, which in addition looks for a GPU at each step and warns without one.
        self.options = v1.RunOptions(trace_level=v1.RunOptions.SOFTWARE_TRACE)
        self._session = session
        self._moves: list[Move] = []
        self._lock = threading.Lock()
        self._clock = Clock()
        self._sampler = MemorySampler(self._clock)
        self._memory: tuple[tuple[float, int], ...] = ()
        if session.store is not None:
            session.store.on_move = self._note

    def stop(self) -> None:
        """Stop recording, after the step's writes have arrived."""
        store = self._session.store
        if store is not None:
            store.flush()
        self.close()

    def timeline(self, run_metadata: Any, title: str) -> Timeline:
        """Return the timeline of the run that filled `run_metadata`. It takes milliseconds for a thousand ops.

        Args:
            run_metadata: What TensorFlow recorded until `stop`.
            title: Title of the timeline.
        """
        spans = op_spans(run_metadata.step_stats, self._session.program.graph_def, self._clock)
        specs = self._session.program.stored
        with self._lock:
            for move in self._moves:
                stream = _STREAMS.get(move.kind, LOAD)
                begin_s, end_s = move.begin_s - self._clock.counter_s, move.end_s - self._clock.counter_s
                spans.append(Span(stream, specs[move.weight].name, begin_s, end_s, move.num_bytes))
        return measured_timeline(title, spans, self._memory)

    def close(self) -> None:
        """Stop recording."""
        if self._session.store is not None:
            self._session.store.on_move = None
        self._memory = self._sampler.stop()

    def _note(self, move: Move) -> None:
        with self._lock:
            self._moves.append(move)


class TraceHook(tf.compat.v1.train.SessionRunHook):
    """Records one step and writes `<folder>/step_<N>.json` (Chrome trace) and, with matplotlib, `step_<N>.png`.

    If a file cannot be written, the hook logs one warning and the run goes on.

    Args:
        step: Global step to record, from 1. TensorFlow records every op of it, so it is slower than other steps.
        folder: Made if it is missing.
        keep: Called with the timeline.
    """

    def __init__(self, step: int, folder: str | Path, keep: Callable[[Timeline], None] | None = None) -> None:
        self._step = step
        self._folder = Path(folder)
        self._keep = keep
        self._is_recorded = False
        self._recorder: StepRecorder | None = None

    def end(self, session: Any) -> None:
        """Tell if the run had no such step."""
        if not self._is_recorded:
            run_log.warning(
                "CEREBRAS_TRACE_STEP is %d, but this run took no such step and ended after step %d: no trace.",
                *(self._step, session.global_step),
            )

    def before_run(self, run_context: Any) -> Any:
        """Ask TensorFlow to record the run if this is the step."""
        session = run_context.session
        if session.global_step + 1 != self._step:
            return None
        self._recorder = StepRecorder(session)
        return v1.train.SessionRunArgs(None, options=self._recorder.options)

    def close(self) -> None:
        """Stop recording, if the recorded step raised an error."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Write the recorded timeline."""
        if self._recorder is None:
            return
        self._recorder.stop()
        timeline = self._recorder.timeline(run_values.run_metadata, f"step {self._step}")
        self._recorder = None
        self._is_recorded = True
        if self._keep is not None:
            self._keep(timeline)
        path = self._folder / f"step_{self._step}.json"
        try:
            write_chrome_trace(path, timeline)
            # The picture is optional and needs matplotlib; the trace holds all data.
            with contextlib.suppress(SettingsError):
                write_picture(path.with_suffix(".png"), timeline)
        except OSError as error:  # such as a full disk: a trace is not worth a run
            run_log.warning(
                "The trace of step %d in %s is incomplete or missing (%s). The run and its checkpoints are fine.",
                *(self._step, self._folder, error),
            )
        else:
            run_log.info("Trace of step %d: %s (open it in ui.perfetto.dev)", self._step, path)
        wire_s = timeline.busy_s((WIRE,))
        if wire_s:
            run_log.info(
                "Transfers between CSX took %.3f of its %.3f seconds; %.0f%% of that overlapped computation.",
                wire_s,
                timeline.end_s,
                100 * timeline.overlap((WIRE,)),
            )
        moves_s = timeline.busy_s((LOAD, STORE))
        if moves_s:
            run_log.info(
                "Loads and stores took %.3f of its %.3f seconds; %.0f%% of that overlapped computation.",
                moves_s,
                timeline.end_s,
                100 * timeline.overlap(),
            )
