"""InMemoryEvaluatorHook: evaluates the current weights of a training run, without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.estimator.training.initialize import initial_values
from cerebras_tensorflow.runtime.session import ProgramSession

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook


class InMemoryEvaluatorHook(SessionRunHook):
    """Evaluates before the first step of a training run, every few steps and at its end.

    The metrics go to the same event files as those of `evaluate`. Each evaluation calls model_fn and input_fn again.
    Variables that the training run does not have keep their initial values.

    Args:
        estimator: The estimator that trains.
        input_fn, steps, hooks, name: As for its evaluate.
        every_n_iter: Training steps between evaluations.

    Raises:
        ValueError: If every_n_iter or steps is not positive, or TF_CONFIG has several workers.
        TypeError: If a hook is not a SessionRunHook.
    """

    def __init__(
        self,
        estimator: CerebrasEstimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        if estimator.config.num_ps_replicas > 0 or estimator.config.num_worker_replicas > 1:
            raise ValueError("InMemoryEvaluator supports only single machine (aka Local) setting.")
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        for hook in hooks or ():
            if not isinstance(hook, SessionRunHook):
                raise TypeError(f"Hooks must be a SessionRunHook, given: {hook}")
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = tuple(hooks or ())
        self._name = name
        self._every = every_n_iter
        self._taken = 0

    def begin(self) -> None:
        """Reset the count of steps."""
        self._taken = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Evaluate the first weights of the run."""
        self._evaluate(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Evaluate after every few steps."""
        self._taken += 1
        if self._taken % self._every == 0:
            self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        """Evaluate the last weights of the run."""
        self._evaluate(session)

    def _evaluate(self, training: ProgramSession) -> None:
        def take_over(model: Model, session: ProgramSession) -> None:
            scaffold = getattr(model.spec, "scaffold", None)
            for part in ("saver", "init_fn"):
                if getattr(scaffold, part, None) is not None:
                    raise ValueError(f"InMemoryEvaluator does not support custom {part}")
            trained = {spec.name for spec in training.weights()}
            own = set(model.saved_names()) & {spec.name for spec in session.weights()}
            if own - trained:
                for name, value in initial_values(model, None):
                    if name not in trained:
                        session.load(name, value)
            for name in sorted(own & trained):
                # A copy: the evaluation's variable may take over the memory, and what is read is the training's own.
                session.load(name, training.read(name).copy())

        evaluate = self._estimator._cs_evaluate_values  # noqa: SLF001 - shared by these two classes only
        evaluate(self._input_fn, self._steps, self._hooks, self._name, take_over)
