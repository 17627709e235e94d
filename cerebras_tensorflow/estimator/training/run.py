"""One training run, from its first checkpoint to its last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import tensorflow as tf

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CollectiveError, CorruptCheckpointError
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.estimator.execution.run_report import write_run_report
from cerebras_tensorflow.estimator.execution.target import Target
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.hook_list import hooks_of
from cerebras_tensorflow.estimator.training.hooks import TrainingHook
from cerebras_tensorflow.estimator.training.open_session import TrainingSessionCreator
from cerebras_tensorflow.estimator.training.prepare import PreparedRun, prepare
from cerebras_tensorflow.estimator.training.request import TrainingRequest
from cerebras_tensorflow.estimator.training.signals import StopSignals
from cerebras_tensorflow.estimator.uploads import upload_files
from cerebras_tensorflow.logs import run_log, run_progress
from cerebras_tensorflow.perf import performance
from cerebras_tensorflow.perf.html.content import RunRecord
from cerebras_tensorflow.progress import Progress
from cerebras_tensorflow.runtime.csx.wire import WireBytes
from cerebras_tensorflow.saver.files.atomic import FolderLock
from cerebras_tensorflow.saver.model_dir import retention


@files.closed_to_others()
def train(request: TrainingRequest, target: Target) -> None:
    """Train until the last step, the end of the input or a signal.

    Raises:
        NanLossError: If the loss is not finite; the last checkpoint stays.
        SystemExit: 130 or 143 after Ctrl-C or SIGTERM, after the run is saved.
    """
    store_choice.remove_left(request.settings.cs, request.work_folder)
    start = checkpoints.newest_whole(request.model_dir)
    if start is not None and request.warm_start is not None:
        run_log.info("warm_start_from is not used: the run resumes from %s.", start)
    first_step = checkpoints.step_in(start) if start else 0
    last_step = request.last_step
    if request.steps is not None:
        last_step = first_step + request.steps
    if last_step is not None and first_step >= last_step:
        run_log.info("Skipping training since max_steps has already saved: %s is at step %d.", start, first_step)
        return
    with FolderLock(request.work_folder), StopSignals() as signals:
        retention.clean_up(request.work_folder)
        try:
            _run(request, target, start, last_step, signals)
        finally:
            upload_files(request.model_dir)
    signals.exit_if_received()


def _run(
    request: TrainingRequest, target: Target, start: str | None, last_step: int | None, signals: StopSignals
) -> None:
    try:
        with ExitStack() as cleanup:
            run = prepare(request, target, start, last_step, signals, cleanup)
            watch = TrainingHook(run, signals)
            creator = TrainingSessionCreator(run)
            with run.saver:
                _take_steps(run, watch, creator, signals)
            _finish(run, watch, creator)
    except CorruptCheckpointError as error:
        # The input is already at the step of this checkpoint, so this run cannot fall back to another one.
        raise CorruptCheckpointError(
            f"{error} The run stops here. Start it again: it then looks for an undamaged checkpoint."
        ) from error


def _take_steps(run: PreparedRun, watch: TrainingHook, creator: TrainingSessionCreator, signals: StopSignals) -> None:
    fetches = [run.model.spec.train_op, run.model.spec.loss]

    def step() -> None:
        try:
            _, loss = session.run(fetches)
        except tf.errors.OutOfRangeError:
            watch.is_exhausted = True
            raise
        watch.final_loss = loss

    with (
        run.model.graph.as_default(),
        tf.compat.v1.train.MonitoredSession(session_creator=creator, hooks=hooks_of(run, watch)) as session,
        _saving_after_a_lost_csx(watch, creator, signals),
    ):
        if run.request.on_ready is not None:
            run.request.on_ready()
        if not session.should_stop():
            with _first_step_progress(creator):
                step()
        first = watch.step
        num_steps = watch.last_step - first if watch.last_step is not None else None
        with run_progress("Training", num_steps, "steps", lambda: watch.step - first):
            while not session.should_stop():
                step()


@contextmanager
def _saving_after_a_lost_csx(
    watch: TrainingHook, creator: TrainingSessionCreator, signals: StopSignals
) -> Iterator[None]:
    """End the steps without an error if another CSX fails after a signal, before the update of a step.

    The run was to end after this step. It ends before it: this process has all values of the step before. If the CSX
    share the weights, those of the lost CSX are lost with it, and the error ends the run.
    """
    try:
        yield
    except CollectiveError as error:
        session, csx = creator.session, creator.csx
        if csx is not None and csx.store is not None:
            raise
        if signals.received is None or session is None or not session.is_between_steps:
            raise
        run_log.warning("%s So the run ends at step %d.", error, watch.step)


def _first_step_progress(creator: TrainingSessionCreator) -> Progress:
    """Return the progress of the first step, in bytes that the weight store moves if there is a store."""
    store, program = creator.opened_store, creator.compiled.program
    if store is None:
        return run_progress("First step")
    before = store.bytes_read + store.bytes_written
    return run_progress("First step", program.step_bytes, done=lambda: store.bytes_read + store.bytes_written - before)


def _finish(run: PreparedRun, watch: TrainingHook, creator: TrainingSessionCreator) -> None:
    """Log how the run ended; write performance.json and the report."""
    if watch.is_exhausted:
        run_log.warning(
            "The input ended at step %d%s; training stops here. Repeat the dataset to train longer.",
            watch.step,
            f", before step {watch.last_step}" if watch.last_step else "",
        )
    meter = run.meter
    overall = meter.overall_speed()
    run_log.info(
        "Training finished with %d samples in %.3f seconds, %.2f samples/second.",
        meter.samples, meter.elapsed_s, overall.samples_per_s,
    )  # fmt: skip
    if watch.final_loss is not None or not run.request.is_cerebras:  # tf.estimator tells of a run without a step
        final = f"{watch.final_loss:.6g}" if run.request.is_cerebras else str(watch.final_loss)
        run_log.info("Loss for final step: %s.", final)
    figures: tuple[tuple[str, str], ...] = (
        ("samples", f"{meter.samples:,}"),
        ("training time", f"{meter.elapsed_s:.3f} s"),
        ("speed of this machine", f"{overall.samples_per_s:,.2f} samples/s"),
        ("time to compile", f"{creator.compiled.compile_s:.2f} s"),
        ("share of time that steps waited for input", f"{meter.input_wait_share:.0%}"),
    )
    num_csx = creator.csx.num_csx if creator.csx is not None else 1
    sent, received = creator.csx.wire_bytes if creator.csx is not None else (0.0, 0.0)
    planned = creator.csx.planned_wire_bytes if creator.csx is not None else WireBytes(0.0, 0.0)
    if num_csx > 1:
        figures += (
            ("CSX", str(num_csx)),
            ("bytes that a CSX sends in a step", f"{sent:,.0f} B (planned {planned.sent:,.0f} B)"),
            ("bytes that a CSX receives in a step", f"{received:,.0f} B (planned {planned.received:,.0f} B)"),
        )
    record = RunRecord(watch.record.steps, watch.record.losses, watch.record.samples_per_s, figures, watch.sparsity)
    creator.compiled.write_estimate()
    write_run_report(run.request.work_folder, creator.compiled, record, watch.timelines)
    performance.write(
        run.request.work_folder,
        performance.Performance(
            compile_time=creator.compiled.compile_s,
            programming_time=creator.programming_s,
            samples_per_sec=overall.samples_per_s,
            total_samples=meter.samples,
            total_time=meter.elapsed_s,
            est_samples_per_sec=creator.compiled.estimate.simulation.samples_per_s,
            suspected_input_bottleneck=performance.is_input_bound(meter.input_wait_share),
            num_csx=num_csx,
            wire_bytes_sent_per_step=sent,
            wire_bytes_received_per_step=received,
            planned_wire_bytes_sent_per_step=planned.sent,
            planned_wire_bytes_received_per_step=planned.received,
        ),
    )
