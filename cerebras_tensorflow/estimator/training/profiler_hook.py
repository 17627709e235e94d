"""The hook behind op_profiler_config: records some steps, writes chrome_trace.json, and logs the slowest layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.training.recording import Recording, StepRecorder
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.chrome_trace import write_chrome_trace
from cerebras_tensorflow.perf.profile import ProfilerSettings, top_table
from cerebras_tensorflow.perf.timeline import Timeline

NAME = "chrome_trace.json"


class ProfilerHook(tf.compat.v1.train.SessionRunHook):
    """Records the steps of an op_profiler_config.

    Args:
        settings: The steps.
        folder: Folder of chrome_trace.json.
        recording: Of the process. It goes on from the first of the steps to the last.
        keep: Called with each timeline.
    """

    def __init__(
        self, settings: ProfilerSettings, folder: str, recording: Recording, keep: Callable[[Timeline], None]
    ) -> None:
        self._settings = settings
        self._path = Path(folder) / NAME
        self._recording = recording
        self._keep = keep
        self._taken = 0
        self._is_recording = False
        self._recorder: StepRecorder | None = None
        self._recorded: list[tuple[StepRecorder, str]] = []

    def before_run(self, run_context: Any) -> None:
        """Begin to record if this is one of the steps."""
        if not self._settings.start_step <= self._taken + 1 <= self._settings.end_step:
            return
        if not self._is_recording:
            self._recording.begin()
            self._is_recording = True
        self._recorder = StepRecorder(run_context.session, self._recording)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keep what was recorded. It is evaluated after the last step, so that it takes no time of the next one."""
        self._taken += 1
        if self._recorder is None:
            return
        self._recorder.stop()
        self._recorded.append((self._recorder, f"step {run_context.session.global_step}"))
        self._recorder = None
        if self._taken == self._settings.end_step:
            self.close()

    def end(self, session: Any) -> None:
        """Write the trace and log the ten slowest layers, or say that the run was too short."""
        self.close()
        wanted = self._settings
        if not self._recorded:
            run_log.warning(
                "op_profiler_config asks for steps %d to %d, but this run took %d steps: no profile.",
                *(wanted.start_step, wanted.end_step, self._taken),
            )
            return
        if self._taken < wanted.end_step:
            run_log.warning(
                "op_profiler_config asks for steps up to %d, but this run took %d steps.", wanted.end_step, self._taken
            )
        timelines = [recorder.timeline(title) for recorder, title in self._recorded]
        for timeline in timelines:
            self._keep(timeline)
        try:
            write_chrome_trace(self._path, *timelines)
        except OSError as error:  # such as a full disk: a profile is not worth a run
            run_log.warning("%s could not be written (%s). The run is not affected.", self._path, error)
        else:
            run_log.info("Profile: %s (open it in ui.perfetto.dev)", self._path)
        run_log.info(
            "The layers that took most time in %d profiled steps, measured on this machine:\n%s",
            *(len(timelines), top_table(timelines)),
        )

    def close(self) -> None:
        """Stop recording, also if a recorded step raised an error."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        if self._is_recording:
            self._is_recording = False
            self._recording.end()
