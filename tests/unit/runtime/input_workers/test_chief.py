import warnings

import pytest
import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.runtime.input_workers import chief as input_workers
from cerebras_tensorflow.runtime.input_workers import order as input_order
from cerebras_tensorflow.runtime.input_workers.parts import find_split, part


def variant_of(make, seed: int | None = 1):
    tf.compat.v1.set_random_seed(seed)
    return tf.data.experimental.to_variant(make())


def batches(dataset) -> list[bytes]:
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    contents = []
    with tf.compat.v1.Session() as session:
        session.run(iterator.initializer)
        while True:
            try:
                contents.append(session.run(batch).tobytes())
            except tf.errors.OutOfRangeError:
                return contents


def numbers():
    return tf.data.Dataset.range(50).shuffle(20).repeat(2)


def pair(x):
    return tf.stack([x, tf.cast(x % 5, tf.int64)])


def fused(dataset):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but old scripts use it
        return dataset.apply(tf.data.experimental.map_and_batch(lambda x: x * 3, 7))


PIPELINES = {
    "map and batch": lambda: numbers().map(lambda x: x * 3).batch(7).prefetch(2),
    "batch, then map": lambda: numbers().batch(7).map(lambda x: x * 3),
    "dropped remainder": lambda: numbers().map(lambda x: x * 3, num_parallel_calls=2).batch(7, drop_remainder=True),
    "no batch": lambda: numbers().map(lambda x: x * 3),
    "repeat last": lambda: tf.data.Dataset.range(50).map(lambda x: x * 3).batch(7).repeat(2),
    "shuffle last": lambda: tf.data.Dataset.range(50).map(lambda x: x * 3).shuffle(10),
    "map first": lambda: tf.data.Dataset.range(50).map(lambda x: x * 3).shuffle(20).repeat(2).batch(7),
    "between": lambda: tf.data.Dataset.range(50).map(lambda x: x * 3).shuffle(9).map(pair).take(40).skip(3).batch(7),
    "map first, no batch": lambda: tf.data.Dataset.range(50).map(lambda x: x * 3).shuffle(20).skip(4),
    "skip batches": lambda: numbers().map(lambda x: x * 3).repeat(2).batch(7).skip(2).map(lambda x: x + 1).prefetch(1),
    "resumed": lambda: (
        tf.data.Dataset.range(50)
        .map(lambda x: x * 3)
        .shuffle(9)
        .repeat(3)
        .batch(7, drop_remainder=True)
        .skip(3)
        .take(9)
    ),
    "nothing left": lambda: numbers().map(lambda x: x * 3).batch(7).skip(40),
    "map and batch, fused": lambda: numbers().apply(fused).skip(2),
    "random map": lambda: numbers().map(lambda x: draw(x)).map(pair).batch(7),
    "batched twice": lambda: numbers().batch(2).map(lambda x: x + 1).batch(3),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_parts_make_up_the_whole(name: str, count: int) -> None:
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        whole = batches(PIPELINES[name]())
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        dataset = PIPELINES[name]()
        variant = input_order.maps_last(tf.data.experimental.to_variant(dataset))
        own = [batches(part(variant, dataset.element_spec, index, count)) for index in range(count)]
        assert [own[number % count][number // count] for number in range(len(whole))] == whole
        # A replacement continues after the batches that the chief has.
        assert batches(part(variant, dataset.element_spec, count - 1, count, first_batch=2)) == own[count - 1][2:]


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_that_compute_ahead_are_known(name: str) -> None:
    with tf.Graph().as_default():
        is_ahead = input_order.computes_ahead(variant_of(PIPELINES[name]).op)
    assert is_ahead == (name in ("map and batch", "dropped remainder", "skip batches"))


def test_the_last_maps_and_the_batching_are_split() -> None:
    with tf.Graph().as_default():
        split = find_split(variant_of(PIPELINES["map and batch"]))
        assert (split.source.op.type, split.batch_size) == ("RepeatDataset", 7)


@pytest.mark.parametrize(
    ("make", "source", "is_mapped_before"),
    [
        (PIPELINES["map first"], "RepeatDataset", False),
        (PIPELINES["map first, no batch"], "SkipDataset", False),
        (PIPELINES["between"], "SkipDataset", False),
        (PIPELINES["map and batch"], "RepeatDataset", False),
        (PIPELINES["skip batches"], "SkipDataset", False),
        (PIPELINES["resumed"], "TakeDataset", False),
        # Elements are batches here: what makes them is repeated in every worker.
        (PIPELINES["repeat last"], "RepeatDataset", True),
        (lambda: tf.data.Dataset.range(50).map(draw).shuffle(20).batch(7), "ShuffleDataset", True),
        # A map with state runs for every element in each worker, so its draws do not depend on the workers.
        (lambda: numbers().map(draw).map(pair).batch(7), "MapDataset", True),
    ],
)
def test_maps_before_a_shuffle_are_split_too_unless_they_have_state(make, source: str, is_mapped_before: bool) -> None:
    with tf.Graph().as_default():
        split = find_split(input_order.maps_last(variant_of(make)))
        assert split.source.op.type == source
        upstream = {operation.type for operation in input_order.upstream(split.source.op)}
        assert any(kind in upstream for kind in input_order.MAPS) == is_mapped_before


def draw(x):
    return x + tf.random.uniform([], maxval=9, dtype=tf.int64, seed=3)


def unordered():
    options = tf.data.Options()
    options.deterministic = False
    return numbers().map(lambda x: x).with_options(options)


@pytest.mark.parametrize(
    ("make", "seed", "reason"),
    [
        (PIPELINES["map and batch"], 1, ""),
        (PIPELINES["map and batch"], None, "without a seed"),
        (unordered, 1, "no fixed order"),
        (lambda: numbers().map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)), 1, "calls Python"),
    ],
)
def test_datasets_that_workers_cannot_repeat_stay_in_the_chief(make, seed: int | None, reason: str) -> None:
    with tf.Graph().as_default():
        answer = input_workers.why_not(variant_of(make, seed))
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_the_workers_start_before_the_first_batch_is_read(tmp_path) -> None:
    launch = env.read({env.INPUT_WORKERS: "2", env.INPUT_FOLDER: str(tmp_path), env.ROLE: "chief"})
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        input_workers.distributed(PIPELINES["map and batch"](), launch)
    assert (tmp_path / input_workers.REQUEST_FILE).exists()


def test_without_workers_the_dataset_is_unchanged() -> None:
    with tf.Graph().as_default():
        dataset = numbers()
        assert input_workers.distributed(dataset) is dataset


def test_each_csx_has_workers_of_its_own_which_read_only_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(input_workers.run_log, "info", lambda text, *values: lines.append(text % values))
    num_csx, workers = 2, input_workers.WorkersOfCsx(2, per_csx=2)
    assert [workers.count(available) for available in (1, 3, 4, 9)] == [1, 2, 4, 4]
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.range(24).map(lambda x: x * 3).batch(2)
        count = workers.count(5)
        whole = batches(dataset)
        variant = input_order.maps_last(tf.data.experimental.to_variant(dataset))
        parts = [batches(part(variant, dataset.element_spec, index, count)) for index in range(count)]
    turns = workers.in_turn(count)
    for csx in range(num_csx):  # a step takes num_csx consecutive batches, in the order of the CSX
        own = [batch for worker, part_of in zip(turns, parts, strict=True) if worker // 2 == csx for batch in part_of]
        assert sorted(own) == sorted(whole[csx::num_csx])
    workers.note(1)
    assert lines == [
        "num_workers_per_csx=2 asks for 4 input worker(s), and this launch has 1. Start it with csrun_wse "
        "--input-workers 4."
    ]
