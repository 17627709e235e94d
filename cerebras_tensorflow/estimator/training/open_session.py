"""The session of a training run, with its variables set: from a checkpoint, or to their initial values."""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.model.inputs import first_dim
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.graph_files import GraphFiles
from cerebras_tensorflow.estimator.training.initialize import initialize
from cerebras_tensorflow.estimator.training.prepare import PreparedRun
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.session import ProgramSession


class TrainingSessionCreator(tf.compat.v1.train.SessionCreator):
    """Makes the session of a training run after MonitoredSession has called the hooks' begin.

    Args:
        run: The run.

    Attributes:
        programming_s: Time that setting up took [s]; 0 before the session is made.
    """

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self.programming_s = 0.0

    def create_session(self) -> ProgramSession:
        """Return the session."""
        run = self._run
        scaffold = run.model.scaffold
        if scaffold is not None and not run.is_streaming:
            scaffold.finalize()  # hooks may use its saver
            has_files = run.request.settings.checkpoint_save_graph_def
            files = GraphFiles(run.model.graph, run.request.model_dir, scaffold.saver, has_files)
            run.saver.write_graph = files.write_beside
        begin = time.perf_counter()
        run.pipeline.start()
        session = ProgramSession(
            run.compiled.program,
            run.model.graph,
            run.model.train_node,
            run.store,
            run.session_config,
            self._next_batch,
        )
        run.unused_store.pop_all()
        run.cleanup.callback(session.close)
        session.run(run.ops.local_init)
        self._set_variables(session)
        self.programming_s = time.perf_counter() - begin
        if run.is_streaming:
            run_log.info("Loading CPU pre-initialized weights took %.3f seconds", self.programming_s)
        if run.start is None and scaffold is not None and scaffold.init_fn is not None:
            scaffold.init_fn(session)
        return session

    def _set_variables(self, session: ProgramSession) -> None:
        run = self._run
        if run.start is not None:
            run_log.info("Restoring parameters from %s", run.start)
            checkpoints.restore(session, run.start, run.model.saved_names())
            is_ours = os.path.abspath(run.start) == os.path.abspath(run.saver.path(session.global_step))
            run.saver.saved_step = session.global_step if is_ours else None
        elif run.initial is not None:
            checkpoints.restore(session, run.initial, run.model.saved_names())
        else:
            initialize(session, run.model, run.request.warm_start)

    def _next_batch(self) -> Any:
        batch = self._run.pipeline.next_batch()
        self._run.meter.batch_size = first_dim(batch)
        return batch
