"""Evaluate each new checkpoint, in the training process or in a separate process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.estimator.arguments import EXPORT_FOLDER
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.checkpoint_reader import exists

_WARN_EVERY_S = 600.0
_LOOK_EVERY_S = 0.5  # between looks for a new checkpoint, if throttle_secs is 0


@dataclass(frozen=True)
class Evaluation:
    """The results of one evaluation.

    Attributes:
        metrics: As the estimator's evaluate returns them.
        exports: What the exporters returned.
    """

    metrics: dict[str, Any]
    exports: list[Any]

    @property
    def step(self) -> int:
        """Global step of the checkpoint."""
        return int(self.metrics["global_step"])


class Evaluator:
    """Evaluates the newest checkpoint of an estimator and calls the exporters.

    Args:
        estimator: The estimator.
        spec: The EvalSpec.
        max_steps: Step at which training ends; None: unknown.
    """

    def __init__(self, estimator: Any, spec: Any, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = spec
        self._max_steps = max_steps
        self._evaluated: str | None = None
        self._warned_at: float | None = None

    def is_end(self, step: int) -> bool:
        """Whether training has ended at this step."""
        return self._max_steps is not None and step >= self._max_steps

    def evaluate(self, is_last: bool = False) -> Evaluation | None:
        """Evaluate the newest checkpoint; return None if there is no new one since the last evaluation.

        Args:
            is_last: Whether training has ended, possibly before max_steps.
        """
        path = self._newest()
        return self._evaluate(path, is_last) if path is not None else None

    def evaluate_beside_training(self) -> Evaluation | None:
        """Like `evaluate`, but also return None if the training process removes the checkpoint meanwhile."""
        path = self._newest()
        if path is None:
            return None
        try:
            return self._evaluate(path, False)
        except Exception as error:  # the type depends on which reader misses the file
            if exists(path):
                raise
            run_log.warning(
                "Checkpoint %s was removed while it was evaluated (%s); waiting for the next one. Set a larger "
                "keep_checkpoint_max to keep checkpoints longer.", path, error,
            )  # fmt: skip
            return None

    def _newest(self) -> str | None:
        path = self._estimator.latest_checkpoint()
        if path is None:
            self._warn("Estimator is not trained yet. Will start an evaluation when a checkpoint is ready.")
        elif path == self._evaluated:
            self._warn("No new checkpoint ready for evaluation. Skip the current evaluation pass.")
        return path if path != self._evaluated else None

    def _evaluate(self, path: str, is_last: bool) -> Evaluation:
        spec = self._spec
        metrics = self._estimator.evaluate(
            input_fn=spec.input_fn, steps=spec.steps, hooks=list(spec.hooks), checkpoint_path=path, name=spec.name
        )
        _check_metrics(metrics)
        is_last = is_last or self.is_end(int(metrics["global_step"]))
        folder = os.path.join(self._estimator.model_dir, EXPORT_FOLDER)
        exports = [
            exporter.export(self._estimator, os.path.join(folder, exporter.name), path, metrics, is_last)
            for exporter in spec.exporters
        ]
        self._evaluated, self._warned_at = path, None
        return Evaluation(metrics, exports)

    def _warn(self, text: str) -> None:
        """Log a warning, at most every ten minutes."""
        now = time.monotonic()
        if self._warned_at is None or now - self._warned_at > _WARN_EVERY_S:
            run_log.warning("%s", text)
            self._warned_at = now


def _check_metrics(metrics: Any) -> None:
    """Check what an estimator's evaluate returned; programs have estimators of their own."""
    if not metrics:
        raise ValueError("Internal error: `Estimator.evaluate` should never return empty metrics.")
    if not isinstance(metrics, dict):
        raise TypeError(f"`Estimator.evaluate` should return dict. Given {type(metrics)}.")
    if "global_step" not in metrics:
        raise ValueError(
            f"Internal error: `Estimator.evaluate` result should have `global_step` in result. Given {metrics}"
        )


def evaluate_until_the_end(estimator: Any, spec: Any, max_steps: int | None) -> None:
    """Evaluate and export each new checkpoint that another process writes, until one reaches max_steps.

    The first evaluation begins start_delay_secs after the call. Evaluations begin at least throttle_secs apart. Without
    max_steps this function does not return.
    """
    if spec.start_delay_secs:
        run_log.info("Waiting %f secs before starting eval.", spec.start_delay_secs)
        time.sleep(spec.start_delay_secs)
    evaluator = Evaluator(estimator, spec, max_steps)
    while True:
        begin = time.monotonic()
        evaluation = evaluator.evaluate_beside_training()
        if evaluation is not None and evaluator.is_end(evaluation.step):
            run_log.info("Exiting evaluation, global_step=%d >= train max_steps=%s", evaluation.step, max_steps)
            return
        rest_s = spec.throttle_secs - (time.monotonic() - begin)
        if rest_s > 0:
            run_log.info("Waiting %f secs before starting next eval run.", rest_s)
            time.sleep(rest_s)
        elif evaluation is None:
            time.sleep(_LOOK_EVERY_S)
