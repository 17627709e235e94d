"""The session of a training run, with its variables set: from a checkpoint, or to their initial values."""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.execution import several_csx
from cerebras_tensorflow.estimator.execution.compile_model import compile_model
from cerebras_tensorflow.estimator.execution.store_choice import open_store
from cerebras_tensorflow.estimator.model.inputs import first_dim
from cerebras_tensorflow.estimator.model.model_call import new_local_init
from cerebras_tensorflow.estimator.model.scaffold import acting_saver, checkpoint_layout, finalize, own_init
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.early_stopping import STOP_VARIABLE
from cerebras_tensorflow.estimator.training.graph_files import GraphFiles
from cerebras_tensorflow.estimator.training.initialize import initialize, set_initial_values
from cerebras_tensorflow.estimator.training.prepare import PreparedRun
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.csx.orders import FirstCsx
from cerebras_tensorflow.runtime.session import ProgramSession


class TrainingSessionCreator(tf.compat.v1.train.SessionCreator):
    """Makes the session of a training run after MonitoredSession has called the hooks' begin.

    Args:
        run: The run.

    Attributes:
        compiled: The compiled step.
        opened_store: The weight store of the session; None if nothing is streamed.
        programming_s: Setup time of the session [s]; 0 before it is made.
        csx: Tells the other CSX what to do; None: there are none.
        session: The session; None before it is made.
    """

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self.opened_store = run.store
        self._new: set[str] = set()
        self._was_called = False
        self.compiled = run.compiled
        self.programming_s = 0.0
        self.csx: FirstCsx | None = None
        self.session: ProgramSession | None = None

    def create_session(self) -> ProgramSession:
        """Make the session.

        Raises:
            CerebrasError: If MonitoredSession asks for a second one, after UnavailableError or AbortedError: the store
                and the input of this run cannot go back to its last checkpoint.
        """
        if self._was_called:
            raise CerebrasError(
                "the session or its input failed (the error is in the log). This run cannot continue in a new session. "
                "Start it again: it resumes from its last checkpoint."
            )
        self._was_called = True
        run = self._run
        self._take_over_from_hooks()
        scaffold, model = run.model.scaffold, run.model
        init = own_init(model)
        own_local_init = new_local_init(model, run.ops.local_vars)
        saver = finalize(model)
        run.saver.use(checkpoint_layout(model, saver))
        if saver is not None:
            run.saver.keep(saver.saver_def)
        acting = acting_saver(model, run.saver.path(0))
        if acting is not None:
            run.saver.save_with(acting)
            run.saver.forget_initial()
        if scaffold is not None and not run.is_streaming:
            has_files = run.request.settings.checkpoint_save_graph_def
            run.saver.write_graph = GraphFiles(
                model.graph, run.request.work_folder, scaffold.saver, has_files
            ).write_beside
        begin = time.perf_counter()
        self._start_other_csx()
        self.session = session = ProgramSession(
            self.compiled.program,
            model.graph,
            model.train_node,
            self.opened_store,
            run.session_config,
            self._next_batch if run.pipeline.is_fed else None,
            self.csx,
            steps_take_batches=run.request.is_cerebras,  # a tf.estimator reads its input only if the step uses it
        )
        run.unused_store.pop_all()
        run.cleanup.callback(session.close)
        run.pipeline.start()
        session.run(run.ops.local_init)
        self._set_variables(session, acting)
        if own_local_init:
            session.run(own_local_init)
        run.pipeline.initialize(session)
        self.programming_s = time.perf_counter() - begin
        if run.is_streaming:
            run_log.info("Loading CPU pre-initialized weights took %.3f seconds", self.programming_s)
        if run.start is None and init.changes_values:
            init.run(model, session)
            run.saver.forget_initial()
        init.check_ready(session)
        return session

    def _start_other_csx(self) -> None:
        run = self._run
        assert run.model.train_node is not None, "a training run has a train op"
        self.csx = several_csx.start(
            several_csx.CsxRequest(
                program=self.compiled.program,
                others=self.compiled.others,
                store=self.opened_store,
                train_node=run.model.train_node,
                setup=run.ops.local_init.name,
                session_config=run.session_config,
                settings=run.request.settings.cs,
                folder=run.request.work_folder,
                batches_per_step=run.pipeline.batches_per_step,
            ),
            run.cleanup,
        )
        if self.csx is not None and self.csx.store is not None:
            self.opened_store = self.csx.store

    def _take_over_from_hooks(self) -> None:
        """Compile the step again if hooks have made variables, since checkpoints hold them too."""
        run = self._run
        variables, program = run.model.saved_names(), self.compiled.program
        self._new = set(variables) - {spec.name for spec in (*program.resident, *program.streamed)}
        if not self._new:
            return
        run_log.info("Compiling again: hooks have made %d variables.", len(self._new))
        step = run.model.step(run.ops.roots)
        settings = run.request.settings.cs
        is_for_cs = run.target.system is not None
        self.compiled = compile_model(run.model, step, run.target.mode, settings, run.request.compile_dir, is_for_cs)
        run.unused_store.close()
        self.opened_store = open_store(self.compiled.program, settings, run.request.work_folder, is_training=True)
        if self.opened_store is not None:
            run.unused_store.callback(self.opened_store.close)

    def _set_variables(self, session: ProgramSession, acting: Any) -> None:
        run = self._run
        keys = run.saver.keys
        if run.start is not None:
            if acting is not None:
                checkpoints.restore_with(acting, session, run.start)
            else:
                run_log.info("Restoring parameters from %s", run.start)
                optional = {STOP_VARIABLE, *(weight.mask for weight in run.model.sparse)}
                keys = checkpoints.without_missing(run.start, keys, optional)
                checkpoints.restore(session, run.start, keys)
                checkpoints.warn_of_left_over(run.start, keys)
            is_ours = os.path.abspath(run.start) == os.path.abspath(run.saver.path(session.global_step))
            run.saver.saved_step = session.global_step if is_ours and acting is None else None
            set_initial_values(session, run.model, set(run.model.saved_names()) - set(keys))
        elif run.initial is not None:
            written = {name: key for name, key in run.model.checkpoint_keys().items() if name not in self._new}
            written = checkpoints.without_missing(run.initial, written, {weight.mask for weight in run.model.sparse})
            checkpoints.restore(session, run.initial, written)
            set_initial_values(session, run.model, set(run.model.saved_names()) - set(written))
        else:
            initialize(session, run.model, run.request.warm_start, self._new)

    def _next_batch(self) -> Any:
        batch = self._run.pipeline.next_batch()
        self._run.meter.batch_size = first_dim(batch) * self._run.pipeline.batches_per_step
        return batch
