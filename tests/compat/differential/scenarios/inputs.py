"""Inputs in the graph of the model: tensors, iterators, queues, arrays, frames, and Datasets that share state with it."""

import os

import numpy as np
import pandas as pd
import tensorflow as tf
from common import X, Y, forever, linear, make, once, serving, v1, weights

Spec = tf.estimator.EstimatorSpec


def _iterator(dataset, kind="one_shot"):
    return getattr(v1.data, f"make_{kind}_iterator")(dataset)


def _pairs():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4)


def one_shot_iterator(run):
    def input_fn():
        return _iterator(_pairs().repeat()).get_next()

    estimator = make(run).train(input_fn, steps=5)
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(lambda: _iterator(_pairs()).get_next()))
    run.note("predicted", list(estimator.predict(lambda: _iterator(_pairs()).get_next())))


def iterator_of_a_table_initializer(run):
    def input_fn():
        iterator = _iterator(_pairs().repeat(), "initializable")
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()

    return weights(make(run).train(input_fn, steps=3))


def iterator_of_a_hook(run):
    class Initializes(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            session.run(self.initializer, {self.x: X, self.y: Y})

    hook = Initializes()

    def input_fn():
        hook.x, hook.y = v1.placeholder(tf.float32, X.shape), v1.placeholder(tf.float32, Y.shape)
        iterator = _iterator(tf.data.Dataset.from_tensor_slices((hook.x, hook.y)).batch(4), "initializable")
        hook.initializer = iterator.initializer
        return iterator.get_next()

    estimator = make(run).train(input_fn, hooks=[hook])
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(input_fn, hooks=[hook]))
    run.note("predicted", len(list(estimator.predict(input_fn, hooks=[hook]))))


def iterator_of_a_local_init_op(run):
    made = {}

    def input_fn():
        iterator = _iterator(_pairs().repeat(), "initializable")
        made["initializer"] = iterator.initializer
        return iterator.get_next()

    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        local = tf.group(v1.local_variables_initializer(), v1.tables_initializer(), made["initializer"])
        return spec._replace(scaffold=v1.train.Scaffold(local_init_op=local))

    estimator = make(run, model_fn).train(input_fn, steps=3)
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(input_fn, steps=2))


def tensors_are_fetched_and_fed(run):
    made = {}

    def input_fn():
        made["x"] = v1.placeholder_with_default(tf.constant(X), [None, 3], name="given")
        made["twice"] = made["x"] * 2
        return {"x": made["x"]}, tf.constant(Y)

    class Feeds(v1.train.SessionRunHook):
        def __init__(self):
            self.seen = []

        def before_run(self, context):
            fetches = ["given:0", made["twice"]]
            return v1.train.SessionRunArgs(fetches, {made["x"]: X * 0 + len(self.seen)})

        def after_run(self, context, values):
            self.seen.append([value[0, 0] for value in values.results])

    hook = Feeds()
    run.note("weights", weights(make(run).train(input_fn, hooks=[hook], steps=3)))
    run.note("seen", hook.seen)


def feed_fn_hook(run):
    made = {}

    def input_fn():
        made["x"], made["y"] = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 1])
        return {"x": made["x"]}, made["y"]

    hook = v1.train.FeedFnHook(lambda: {made["x"]: X[:2], made["y"]: Y[:2]})
    estimator = make(run).train(input_fn, hooks=[hook], steps=3)
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(input_fn, hooks=[hook], steps=2))


def global_step_in_the_input(run):
    def input_fn():
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        return {"x": tf.constant(X) + step}, tf.constant(Y)

    return weights(make(run).train(input_fn, steps=3))


def graph_of_the_input(run):
    run.ignore_files()  # 2.15 writes one shard for each device
    seen = {}

    def input_fn():
        seen["input"] = v1.get_default_graph()
        seen["step"] = v1.train.get_global_step()
        counter = v1.get_variable("counter", [], tf.int64, v1.zeros_initializer(), trainable=False)
        v1.add_to_collection("mine", counter)
        with tf.control_dependencies([v1.assign_add(counter, 1)]):
            x = tf.identity(X)
        seen["x"] = x
        return {"x": x}, tf.constant(Y)

    def model_fn(features, labels, mode, params):
        run.note(f"{mode} graph", v1.get_default_graph() is seen["input"])
        run.note(f"{mode} step", v1.train.get_global_step() is seen["step"])
        run.note(f"{mode} tensor", features["x"] is seen["x"])
        run.note(f"{mode} collection", [item.op.name for item in v1.get_collection("mine")])
        run.note(f"{mode} device", features["x"].device)
        return linear(features, labels, mode, params)

    estimator = make(run, model_fn).train(input_fn, steps=3)
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(input_fn, steps=2))


def summaries_of_the_input(run):
    def input_fn():
        features, labels = _iterator(_pairs().repeat()).get_next()
        v1.summary.scalar("input/mean", tf.reduce_mean(features["x"]))
        return features, labels

    make(run, save_summary_steps=1).train(input_fn, steps=3)


def table_of_the_input(run):
    def input_fn():
        keys = tf.constant(["a", "b"])
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 2.0])), -1.0)
        x = table.lookup(tf.constant([["a", "b", "c"]] * 8))
        return {"x": x}, tf.constant(Y)

    return weights(make(run).train(input_fn, steps=3))


def queue_of_files(run):
    run.ignore_files()  # summaries of how full the queues are depend on timing
    paths = []
    for number in range(2):
        paths.append(run.path(f"{number}.csv"))
        rows = np.concatenate([X, Y], 1)[number * 4 : number * 4 + 4]
        os.makedirs(run.folder, exist_ok=True)
        np.savetxt(paths[-1], rows, delimiter=",")

    def input_fn(num_epochs=None):
        files = v1.train.string_input_producer(paths, num_epochs=num_epochs, shuffle=False)
        _, line = v1.TextLineReader().read(files)
        columns = tf.stack(v1.decode_csv(line, [[0.0]] * 4))
        batch = v1.train.batch([columns], batch_size=4, num_threads=1)
        return {"x": batch[:, :3]}, batch[:, 3:]

    estimator = make(run).train(input_fn, steps=4)
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(lambda: input_fn(1)))
    run.note("predicted", list(estimator.predict(lambda: input_fn(1))))
    run.note("until the end", weights(make(run, name="end").train(lambda: input_fn(2))))


def own_queue_runner(run):
    def input_fn():
        queue = tf.queue.FIFOQueue(8, [tf.float32, tf.float32], [[3], [1]])
        enqueue = queue.enqueue_many([tf.constant(X), tf.constant(Y)])
        v1.train.add_queue_runner(v1.train.QueueRunner(queue, [enqueue]))
        x, y = queue.dequeue_many(4)
        return {"x": x}, y

    return weights(make(run).train(input_fn, steps=4))


def numpy_arrays(run):
    run.ignore_files()  # 2.15 has summaries of its queue
    inputs = tf.compat.v1.estimator.inputs.numpy_input_fn
    estimator = make(run).train(inputs({"x": X}, Y, batch_size=3, num_epochs=2, shuffle=False))
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(inputs({"x": X}, Y, batch_size=3, shuffle=False)))
    run.note("predicted", list(estimator.predict(inputs(X, batch_size=3, shuffle=False))))
    run.note("steps", estimator.evaluate(inputs({"x": X}, Y, 4, None, shuffle=False), steps=3))
    run.note(
        "threads", weights(make(run, name="t").train(inputs({"x": X}, Y, 8, 1, True, num_threads=3)))["global_step"]
    )


def _read_all(run, name, input_fn):
    with tf.Graph().as_default():
        batch = input_fn()
        values = []
        with v1.train.MonitoredSession() as session:
            while not session.should_stop():
                values.append(session.run(batch))
        run.note(name, values)
        run.note(f"{name} shapes", [tensor.shape.as_list() for tensor in tf.nest.flatten(batch)])


def arrays_and_frames_without_an_estimator(run):
    inputs = tf.compat.v1.estimator.inputs
    x, y = {"a": np.arange(5), "b": np.arange(10.0).reshape(5, 2)}, np.arange(5) * 10
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [1.5, 2.5, 3.5]}, index=[5, 6, 7])
    series = pd.Series([7, 8, 9], index=[5, 6, 7])
    _read_all(run, "arrays", inputs.numpy_input_fn(x, y, 2, 1, False))
    _read_all(run, "dict labels", inputs.numpy_input_fn(x, {"c": y}, 2, 2, False))
    _read_all(run, "one array", inputs.numpy_input_fn(x["b"], batch_size=2, shuffle=False))
    _read_all(run, "frame", inputs.pandas_input_fn(frame, batch_size=2, shuffle=False))
    _read_all(run, "series", inputs.pandas_input_fn(frame, series, batch_size=2, shuffle=False))
    same = pd.DataFrame({"a": [4, 5, 6], "d": [1.0, 2.0, 3.0]}, index=[5, 6, 7])
    _read_all(run, "shared columns", inputs.pandas_input_fn(frame, same, batch_size=2, shuffle=False))
    numbers = pd.DataFrame({0: [1, 2], 1: [3, 4]})
    _read_all(run, "columns of numbers", inputs.pandas_input_fn(numbers, batch_size=2, shuffle=False))


def _with_a_coordinator(run, input_fn):
    with tf.Graph().as_default(), v1.Session() as session:
        batch = input_fn()
        coordinator = v1.train.Coordinator()
        threads = v1.train.start_queue_runners(session, coordinator)
        values = []
        try:
            while True:
                values.append(session.run(batch))
        except tf.errors.OutOfRangeError:
            pass
        coordinator.request_stop()
        coordinator.join(threads)
        return values


def arrays_with_a_coordinator(run):
    inputs = tf.compat.v1.estimator.inputs
    frame = pd.DataFrame({"a": [1, 2, 3]})
    run.note("arrays", _with_a_coordinator(run, inputs.numpy_input_fn({"x": X}, Y, 3, 1, False)))
    run.note("frame", _with_a_coordinator(run, inputs.pandas_input_fn(frame, batch_size=2, shuffle=False)))


def refused_arrays(run):
    inputs = tf.compat.v1.estimator.inputs
    frame, series = pd.DataFrame({"a": [1, 2, 3]}), pd.Series([1, 2, 3])

    def call(function, *args, **words):
        with tf.Graph().as_default():
            function(*args, **words)()
            return "ok"

    forms = {
        "no shuffle": lambda: inputs.numpy_input_fn(X, Y),
        "lengths": lambda: call(inputs.numpy_input_fn, X, Y[:3], shuffle=False),
        "list": lambda: call(inputs.numpy_input_fn, [1, 2], shuffle=False),
        "empty dict": lambda: call(inputs.numpy_input_fn, {}, shuffle=False),
        "empty array": lambda: call(inputs.numpy_input_fn, X[:0], shuffle=False),
        "empty labels": lambda: call(inputs.numpy_input_fn, X, {}, shuffle=False),
        "same key": lambda: call(inputs.numpy_input_fn, {"x": X}, {"x": Y}, shuffle=False),
        "frame without shuffle": lambda: inputs.pandas_input_fn(frame),
        "index": lambda: inputs.pandas_input_fn(frame, series[1:], shuffle=False),
        "target there": lambda: inputs.pandas_input_fn(frame, series, shuffle=False, target_column="a"),
        "target not text": lambda: inputs.pandas_input_fn(frame, series, shuffle=False, target_column=1),
    }
    for name, form in forms.items():
        run.attempt(name, lambda form=form: form() is not None)


def odd_results(run):
    run.ignore_files()

    def model_fn(features, labels, mode):
        run.note(f"features {mode}", type(features).__name__)
        run.note(f"labels {mode}", type(labels).__name__)
        w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
        step = v1.assign_add(v1.train.get_global_step(), 1)
        return Spec(mode, {"p": tf.reshape(w, [1])}, w + 1, step)

    forms = {
        "none": lambda: None,
        "pair of none": lambda: (None, None),
        "labels only": lambda: (None, tf.constant(1.0)),
        "list": lambda: [tf.constant(X), tf.constant(Y)],
        "three": lambda: (1, 2, 3),
        "arrays": lambda: ({"x": X}, Y),
        "number": lambda: 5,
        "empty dict": lambda: {},
        "sparse": lambda: (tf.sparse.from_dense(X), None),
        "mixed keys": lambda: {1: tf.constant(X), "a": tf.constant(Y)},
    }
    for name, form in forms.items():
        estimator = make(run, model_fn, name.replace(" ", "_"))
        run.attempt(f"train {name}", lambda form=form, one=estimator: bool(one.train(form, steps=1)))
        run.attempt(f"evaluate {name}", lambda form=form, one=estimator: one.evaluate(form, steps=1))
        if name != "mixed keys":
            run.attempt(f"predict {name}", lambda form=form, one=estimator: next(one.predict(form)))


def arguments_of_input_fn(run):
    def input_fn(mode, params, config):
        run.note(mode, [params, type(config).__name__])
        return once()

    def with_words(**words):
        run.note("words", sorted(words))
        return once()

    estimator = make(run, params={"a": 1})
    estimator.train(input_fn)
    estimator.evaluate(input_fn)
    list(estimator.predict(input_fn))
    run.attempt("words", lambda: bool(estimator.evaluate(with_words)))
    run.attempt("other", lambda: bool(estimator.evaluate(lambda other: once())))
    run.attempt("default", lambda: bool(estimator.evaluate(lambda size=2: once())))
    run.attempt("not callable", lambda: bool(estimator.evaluate(once())))


def shared_state_of_two_calls(run):
    calls = []

    def input_fn():
        calls.append(1)
        return forever()

    def model_fn(features, labels, mode, params):
        calls.append(mode)
        return linear(features, labels, mode, params)

    estimator = make(run, model_fn).train(input_fn, steps=1)
    estimator.evaluate(input_fn, steps=1)
    next(estimator.predict(input_fn))
    estimator.export_saved_model(run.path("export"), serving)
    return calls


def random_input_is_new_in_each_step(run):
    run.ignore_files()

    def input_fn():
        return {"x": tf.random.uniform([8, 3])}, tf.constant(Y)

    class Looks(v1.train.SessionRunHook):
        def __init__(self):
            self.seen = set()

        def begin(self):
            self.x = next(
                one for one in v1.get_default_graph().get_operations() if one.type in ("RandomUniform",)
            ).outputs[0]

        def before_run(self, context):
            return v1.train.SessionRunArgs(self.x)

        def after_run(self, context, values):
            self.seen.add(float(values.results[0, 0]))

    hook = Looks()
    make(run).train(input_fn, hooks=[hook], steps=3)
    return len(hook.seen)
