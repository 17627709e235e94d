"""Evaluation and prediction on several CSX give the bits of one. The other CSX are threads of this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.runtime import inference_follower
from cerebras_tensorflow.runtime.csx.messages import Message
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store import remote
from tests.unit.estimator.csx_threads import use_threads
from tests.unit.runtime.weight_store.test_remote import weight_servers

v1 = tf.compat.v1
SAMPLES, BATCH = 26, 4  # the last batch has 2 samples


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A classifier with metrics of several kinds, and with a metric that only the process of model_fn can compute."""
    w = v1.get_variable("w", [8, 64], initializer=v1.random_normal_initializer(seed=1))
    out = v1.get_variable("out", [64, 4], initializer=v1.random_normal_initializer(seed=2))
    x = tf.tanh(features @ w) @ out
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"x": x, "text": tf.strings.as_string(tf.argmax(x, 1))})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)) + 0.01 * tf.nn.l2_loss(w)
    if mode == "train":
        return CSEstimatorSpec(
            mode, loss=loss, train_op=v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
        )
    if params.get("host_call"):
        call = (lambda one, two: {"accuracy": v1.metrics.accuracy(one, two)}, [labels, tf.argmax(x, 1)])
        return CSEstimatorSpec(mode, loss=loss, host_call=call)
    first, second = x[:, 0], x[:, 1]
    weights = tf.cond(tf.reduce_mean(first) > 0, lambda: tf.ones_like(first), lambda: tf.abs(second))
    metrics = {
        "accuracy": v1.metrics.accuracy(labels, tf.argmax(x, 1)),
        "auc": v1.metrics.auc(tf.equal(labels, 1), tf.sigmoid(second)),
        "iou": v1.metrics.mean_iou(labels, tf.argmax(x, 1), 4),
        "error": v1.metrics.mean_squared_error(first, second, weights=weights),
        "python": v1.metrics.mean(tf.numpy_function(lambda value: value * 2, [x], tf.float32)),
    }
    return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


def input_fn() -> Any:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(SAMPLES, 8)).astype(np.float32), random.integers(0, 4, SAMPLES)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def batches(size: int, times: int | None = 1) -> Any:
    """Whole batches of the samples of input_fn, so many times over; None: without end."""
    return input_fn().unbatch().repeat(times).batch(size, drop_remainder=True)


def estimator(folder: Path, num_csx: int, **params: Any) -> CerebrasEstimator:
    settings = CSConfig(num_csx=num_csx, min_stream_bytes=0, weight_store="file")
    return CerebrasEstimator(model_fn, str(folder), config=CSRunConfig(cs_config=settings), params=params)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors that other CSX compute, one entry for each batch; the other CSX become threads."""
    names: list[str] = []
    compute = inference_follower._computed

    def noted(message: Message, session: ProgramSession) -> Message:
        names.append(" ".join(sorted(message.values["tensors"])))
        return compute(message, session)

    monkeypatch.setattr(inference_follower, "_computed", noted)
    use_threads(monkeypatch)
    return names


def bits(results: dict[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in results.items()}


def test_train_and_evaluate_has_the_bits_of_one_csx(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = use_threads(monkeypatch)
    results = []
    for num_csx, batch in ((1, 2 * BATCH), (2, BATCH)):
        settings = CSConfig(num_csx=num_csx, min_stream_bytes=0, micro_batch_size=BATCH)
        config = CSRunConfig(cs_config=settings, tf_random_seed=1)
        one = CerebrasEstimator(model_fn, str(tmp_path / str(num_csx)), config=config, params={})
        train = v1.estimator.TrainSpec(
            lambda batch=batch: input_fn().unbatch().repeat().batch(batch, True), max_steps=4
        )
        whole = v1.estimator.EvalSpec(partial(batches, BATCH), steps=None)
        metrics, _ = v1.estimator.train_and_evaluate(one, train, whole)
        assert one.get_variable_value("global_step") == 4
        results.append(bits(metrics) | {name: one.get_variable_value(name).tobytes() for name in ("w", "out/Adam")})
    assert results[0] == results[1]
    assert sizes == [2, 2], "training and evaluation"


def test_metrics_have_the_bits_of_one_csx(mode: str, tmp_path: Path, computed: list[str]) -> None:
    for params in ({}, {"host_call": True}):
        for steps in (None, 4):
            expected = estimator(tmp_path, 1, **params).evaluate(input_fn, steps=steps)
            assert computed == []
            for num_csx in (2, 3):
                results = estimator(tmp_path, num_csx, **params).evaluate(input_fn, steps=steps)
                assert bits(results) == bits(expected)
                batches = steps or -(-SAMPLES // BATCH)
                assert len(computed) == batches - -(-batches // num_csx), "each CSX computes its batches, and no more"
                assert not any("accuracy/total" in names for names in computed), "only the first CSX has the metrics"
                computed.clear()


def test_the_first_csx_reads_weights_only_for_its_own_batches(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    read: list[int] = []

    class Reader(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            self.before = session.store.bytes_read

        def end(self, session: Any) -> None:
            read.append(session.store.bytes_read - self.before)

    for num_csx in (1, 2):
        list(estimator(tmp_path, num_csx).predict(input_fn, hooks=[Reader()]))
    assert 0 < read[1] <= 5 / 7 * read[0]  # 4 of 7 batches, and once to send the weights


def test_a_hook_that_changes_a_variable_changes_the_batches_after_it(
    mode: str, tmp_path: Path, computed: list[str]
) -> None:
    class Changer(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            (out,) = (one for one in v1.global_variables() if one.op.name == "out")
            self.change = out.assign_add(tf.ones_like(out))

        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.session.run(self.change)

    unchanged = estimator(tmp_path, 1).evaluate(input_fn)
    expected = estimator(tmp_path, 1).evaluate(input_fn, hooks=[Changer()])
    assert bits(expected) != bits(unchanged)
    assert bits(estimator(tmp_path, 3).evaluate(input_fn, hooks=[Changer()])) == bits(expected)


def test_the_stores_of_other_csx_leave_what_is_not_theirs(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    stores = tmp_path / "stores"
    opened: list[Path] = []
    open_share = store_choice.open_share

    def noted(program: Any, rank: int, like: str, folder: Path, num_csx: int) -> Any:
        opened.append(folder)
        return open_share(program, rank, like, folder, num_csx)

    monkeypatch.setattr(store_choice, "open_share", noted)
    (tmp_path / "link").symlink_to(stores)
    for folder in (stores / "store-1", stores / "csx_eval" / "store-1"):
        folder.mkdir(parents=True)
        (folder / "precious.txt").write_text("mine")
    settings = CSConfig(num_csx=2, min_stream_bytes=0, weight_store="file", weight_store_dir=str(tmp_path / "link"))
    runner = CerebrasEstimator(model_fn, str(tmp_path / "m"), config=CSRunConfig(cs_config=settings), params={})
    list(runner.predict(input_fn))
    assert opened == [stores / "csx_eval" / "store-1"]  # that of a training run is in csx
    for folder in (stores / "store-1", opened[0]):
        assert [one.name for one in folder.iterdir()] == ["precious.txt"]


def test_other_csx_use_the_weight_servers_too(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    opened: list[Any] = []
    open_share = store_choice.open_share

    def noted(*arguments: Any) -> Any:
        opened.append(open_share(*arguments))
        return opened[-1]

    monkeypatch.setattr(store_choice, "open_share", noted)
    settings = CSConfig(num_csx=2, min_stream_bytes=0, weight_store="servers")
    runner = CerebrasEstimator(model_fn, str(tmp_path), config=CSRunConfig(cs_config=settings), params={})
    with weight_servers(1) as addresses:
        monkeypatch.setattr(remote, "start_weight_servers", lambda: addresses)
        assert len(list(runner.predict(input_fn))) == SAMPLES
    assert [type(store) for store in opened] == [remote.ServerStore]


def test_predictions_have_the_order_and_bits_of_one_csx(mode: str, tmp_path: Path, computed: list[str]) -> None:
    expected = list(estimator(tmp_path, 1).predict(input_fn))
    results = list(estimator(tmp_path, 3).predict(input_fn))
    assert len(results) == SAMPLES
    assert len(computed) == 4  # of 7 batches
    assert list(map(bits, results)) == list(map(bits, expected))
    (batches,) = [list(estimator(tmp_path, 2).predict(input_fn, yield_single_examples=False))]
    assert [len(batch["x"]) for batch in batches] == [4, 4, 4, 4, 4, 4, 2]
    assert len(list(estimator(tmp_path, 2).predict(input_fn, num_samples=5))) == 5  # ends within a round


def test_micro_batches_are_shared_too(tmp_path: Path, computed: list[str]) -> None:
    params = {"eval_input": {"micro_batch_size": 2}}

    def whole() -> Any:
        return input_fn().unbatch().batch(BATCH, drop_remainder=True)

    expected = estimator(tmp_path, 1, **params).evaluate(whole)
    assert bits(estimator(tmp_path, 2, **params).evaluate(whole)) == bits(expected)
    assert len(computed) == SAMPLES // BATCH


def test_an_error_of_the_input_comes_after_the_batches_before_it(tmp_path: Path, computed: list[str]) -> None:
    def broken() -> Any:
        numbers = tf.data.Dataset.range(8).map(lambda n: 1 / tf.cast(6 - n, tf.float32))  # the last but one is inf
        return numbers.map(lambda x: tf.fill([8], tf.debugging.check_numerics(x, "bad sample"))).batch(2)

    given = estimator(tmp_path, 3).predict(broken)
    assert len([next(given) for _ in range(6)]) == 6
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(given)


def test_evaluation_on_several_csx_needs_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(SettingsError, match=r"pip install cerebras_tensorflow\[mpi\]"):
        estimator(tmp_path, 2).evaluate(input_fn)


def noisy_model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Draws random numbers in each batch, as Monte Carlo dropout and sampling do."""
    w = v1.get_variable("w", [8, 64], initializer=v1.random_normal_initializer(seed=1))
    noise = tf.nn.dropout(tf.ones_like(features), rate=0.5, seed=3)
    x = (features * noise) @ w
    metrics = {"mean": v1.metrics.mean(x)}
    return CSEstimatorSpec(mode, predictions={"x": x, "noise": noise}, loss=tf.reduce_mean(x), eval_metric_ops=metrics)


def test_random_numbers_are_those_of_one_csx(mode: str, tmp_path: Path, computed: list[str]) -> None:
    def run(num_csx: int) -> list[bytes]:
        config = CSRunConfig(cs_config=CSConfig(num_csx=num_csx, min_stream_bytes=0), tf_random_seed=1)
        model = CerebrasEstimator(noisy_model_fn, str(tmp_path), config=config)
        items = list(model.predict(input_fn))
        noise = {b"".join(item["noise"].tobytes() for item in items[k : k + BATCH]) for k in range(0, SAMPLES, BATCH)}
        assert len(noise) == -(-SAMPLES // BATCH), "each batch draws numbers of its own"
        return [item["x"].tobytes() for item in items] + list(bits(model.evaluate(input_fn)).values())

    expected = run(1)
    assert computed == []
    assert run(3) == expected
    assert computed, "other CSX computed batches"
