"""TensorFlow's hooks and saving listeners get the same calls as in a MonitoredTrainingSession."""

from __future__ import annotations

import collections
import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.unit.estimator import tiny

v1 = tf.compat.v1


class Listener(v1.train.CheckpointSaverListener):
    """Records its calls, and checks the step in the session."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.events: list[tuple[str, int]] = []
        self.stops_at = stops_at

    def begin(self) -> None:
        self.step = v1.train.get_global_step()
        self.events.append(("begin", -1))

    def before_save(self, session: Any, global_step_value: int) -> None:
        assert int(session.run(self.step)) == global_step_value
        self.events.append(("before", global_step_value))

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self.events.append(("after", global_step_value))
        return global_step_value == self.stops_at

    def end(self, session: Any, global_step_value: int) -> None:
        self.events.append(("end", global_step_value))


def test_a_logging_tensor_hook_logs(mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.get_logger().propagate = True

    def change(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        mean = tf.reduce_mean(y, name="mean_of_y")
        return (
            {"training_hooks": [v1.train.LoggingTensorHook({"mean": mean}, every_n_iter=2)]} if mode == "train" else {}
        )

    by_name = v1.train.LoggingTensorHook(["mean_of_y"], at_end=True)
    with caplog.at_level(logging.INFO):
        tiny.estimator(tmp_path, {"spec": change}).train(tiny.input_fn(), hooks=[by_name], steps=4)
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("mean = ") for line in lines) == 2
    assert sum(line.startswith("mean_of_y = ") for line in lines) == 1


def test_listeners_are_called_for_each_save(mode: str, tmp_path: Path) -> None:
    listener = Listener()
    estimator = tiny.estimator(tmp_path, save_checkpoints_steps=2)
    estimator.train(tiny.input_fn(), steps=3, saving_listeners=[listener])
    saves = [(word, step) for step in (0, 2, 3) for word in ("before", "after")]
    assert listener.events == [("begin", -1), *saves, ("end", 3)]


def test_a_listener_may_stop_the_run(mode: str, tmp_path: Path) -> None:
    listener = Listener(stops_at=2)
    estimator = tiny.estimator(tmp_path, save_checkpoints_steps=2)
    estimator.train(tiny.input_fn(), steps=8, saving_listeners=[listener])
    assert estimator.get_variable_value("global_step") == 2


def test_hooks_may_fetch_dicts_of_any_kind(mode: str, tmp_path: Path) -> None:
    class Fetcher(v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.results: list[Any] = []

        def before_run(self, run_context: Any) -> Any:
            step = v1.train.get_global_step()
            with_default = collections.defaultdict(list, step=step)
            return v1.train.SessionRunArgs({"a": with_default, "b": collections.OrderedDict(step=step)})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.results.append(run_values.results)

    fetcher = Fetcher()
    tiny.estimator(tmp_path).train(tiny.input_fn(), hooks=[fetcher], steps=1)
    assert isinstance(fetcher.results[0]["a"], collections.defaultdict)
    assert isinstance(fetcher.results[0]["b"], collections.OrderedDict)


def test_a_variable_may_be_fetched_by_its_name(mode: str, tmp_path: Path) -> None:
    seen: list[int] = []

    class Fetcher(v1.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs("global_step:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(int(run_values.results))

    tiny.estimator(tmp_path).train(tiny.input_fn(), hooks=[Fetcher()], steps=2)
    assert seen in ([0, 1], [1, 2], [0, 2], [1, 1])  # before or after the update: nothing orders the two
