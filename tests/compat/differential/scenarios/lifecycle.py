"""Train, resume, evaluate, predict: files, events, values and the checkpoints that are kept."""

import functools

import numpy as np
import tensorflow as tf
from common import X, Y, data, forever, linear, make, once, v1, weights


def train_some_steps(run):
    estimator = make(run, save_summary_steps=2, log_step_count_steps=2)
    returned = estimator.train(forever, steps=5)
    run.note("returns itself", returned is estimator)
    return weights(estimator)


def train_until_the_input_ends(run):
    return weights(make(run).train(once))


def max_steps_of_a_trained_model_skip(run):
    estimator = make(run).train(forever, max_steps=3)
    estimator.train(forever, max_steps=3)
    estimator.train(forever, max_steps=2)
    return int(estimator.get_variable_value("global_step"))


def saves_after_a_resume(run):
    make(run, save_checkpoints_steps=5, keep_checkpoint_max=0).train(forever, max_steps=12)
    estimator = make(run, save_checkpoints_steps=5, keep_checkpoint_max=0).train(forever, max_steps=24)
    return estimator.latest_checkpoint()


def keeps_as_many_checkpoints_as_asked(run):
    for keep in (1, 2, 0, None):
        make(run, name=f"keep_{keep}", save_checkpoints_steps=2, keep_checkpoint_max=keep).train(forever, max_steps=9)
        with open(run.path(f"keep_{keep}", "checkpoint"), encoding="utf-8") as file:
            run.note(f"checkpoint file with {keep}", [line for line in file if "timestamp" not in line])


def no_checkpoints_by_step(run):
    make(run, save_checkpoints_steps=None, save_checkpoints_secs=None).train(forever, max_steps=3)


def summaries_off(run):
    make(run, save_summary_steps=0, log_step_count_steps=None).train(forever, max_steps=3)


def bad_steps(run):
    estimator = make(run)
    for words in ({"steps": 0}, {"max_steps": 0}, {"steps": -1}, {"steps": 1, "max_steps": 1}, {"steps": "a"}):
        run.attempt(str(words), estimator.train, forever, **words)
    run.attempt("evaluate 0", estimator.evaluate, once, steps=0)
    run.attempt("no input", estimator.train, None, steps=1)
    run.attempt("evaluate untrained", estimator.evaluate, once)
    run.attempt("predict untrained", lambda: next(estimator.predict(once)))


def evaluate_in_several_forms(run):
    estimator = make(run, save_checkpoints_steps=2).train(forever, max_steps=4)
    run.note("all", estimator.evaluate(once))
    run.note("steps", estimator.evaluate(forever, steps=1))
    run.note("named", estimator.evaluate(once, name="other"))
    run.note("old checkpoint", estimator.evaluate(once, checkpoint_path=run.path("model", "model.ckpt-2")))
    run.note("folders", [estimator.eval_dir(), estimator.eval_dir("a")])
    run.attempt("no such checkpoint", estimator.evaluate, once, checkpoint_path=run.path("nothing"))


def predict_in_several_forms(run):
    estimator = make(run, save_checkpoints_steps=2).train(forever, max_steps=4)
    run.note("all", list(estimator.predict(once)))
    run.note("keys", list(estimator.predict(once, predict_keys=["p"])))
    run.note("key as text", list(estimator.predict(once, predict_keys="p")))
    run.attempt("unknown keys", lambda: list(estimator.predict(once, predict_keys=["q"])))
    run.note("batches", list(estimator.predict(once, yield_single_examples=False)))
    run.note("old", next(estimator.predict(once, checkpoint_path=run.path("model", "model.ckpt-2"))))
    run.note("features only", next(estimator.predict(lambda: {"x": tf.constant(X)})))


def predict_of_single_tensors(run):
    def model_fn(features, labels, mode):
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=features["x"],
            loss=tf.constant(1.0),
            train_op=v1.assign_add(v1.train.get_global_step(), 1),
        )

    estimator = make(run, model_fn).train(forever, steps=1)
    run.note("rows", list(estimator.predict(once)))
    run.attempt("keys of a tensor", lambda: list(estimator.predict(once, predict_keys=["p"])))


def predict_of_uneven_batches(run):
    def model_fn(features, labels, mode):
        predictions = {"a": features["x"], "b": tf.constant([1, 2])}
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
        return tf.estimator.EstimatorSpec(mode, predictions=predictions, loss=tf.constant(1.0), train_op=train_op)

    estimator = make(run, model_fn).train(forever, steps=1)
    run.attempt("rows", lambda: list(estimator.predict(once)))
    run.attempt("batches", lambda: len(list(estimator.predict(once, yield_single_examples=False))))


def values_of_variables(run):
    estimator = make(run).train(forever, max_steps=2)
    run.note("names", estimator.get_variable_names())
    run.attempt("value", estimator.get_variable_value, "w")
    run.attempt("unknown", estimator.get_variable_value, "nothing")
    fresh = make(run, name="fresh")
    run.attempt("fresh names", fresh.get_variable_names)
    run.attempt("fresh value", fresh.get_variable_value, "w")
    run.attempt("fresh latest", fresh.latest_checkpoint)


def params_and_config(run):
    given = {"rate": 0.1, "list": [1]}
    seen = {}

    def model_fn(features, labels, mode, params, config):
        seen["same"] = params is given
        seen["config"] = config.model_dir
        params["changed"] = True
        return linear(features, labels, mode, params)

    estimator = make(run, model_fn, params=given)
    given["rate"] = 0.5
    given["list"].append(2)
    run.note("params", estimator.params)
    estimator.params["rate"] = 7
    run.note("params again", estimator.params)
    estimator.train(forever, steps=1)
    run.note("seen", seen)
    run.note("params after", estimator.params)
    run.note("given after", given)
    run.note("no params", make(run).params)


def forms_of_model_fn(run):
    class Model:
        def __call__(self, features, labels, mode, params):
            return linear(features, labels, mode, params)

        def method(self, features, labels, mode, params):
            return linear(features, labels, mode, params)

    def with_keywords(**kwargs):
        run.note("keywords", sorted(kwargs))
        return linear(kwargs["features"], kwargs["labels"], kwargs["mode"], kwargs.get("params"))

    def without_labels(features, mode, params):
        return linear(features, 0.0, mode, params)

    def without_mode(features, labels):
        return linear(features, labels, "train", {})

    for name, model_fn in {
        "partial": functools.partial(linear, params={"rate": 0.2}),
        "partial by keyword": functools.partial(linear, params={}),
        "callable": Model(),
        "method": Model().method,
        "keywords": with_keywords,
        "lambda": lambda features, labels, mode, params: linear(features, labels, mode, params),
        "without mode": without_mode,
    }.items():
        run.attempt(
            name, lambda model_fn=model_fn, name=name: weights(make(run, model_fn, name).train(forever, steps=2))
        )
    run.attempt("labels to a model without", make(run, without_labels, "a").train, forever, steps=1)
    run.attempt("no model", lambda: make(run, None, "b"))
    run.attempt("no features", lambda: make(run, lambda labels: None, "c"))
    run.attempt("unknown argument", lambda: make(run, lambda features, other: None, "d"))
    run.attempt("params not taken", lambda: make(run, without_mode, "e", params={"a": 1}))
    run.attempt("returns nothing", lambda: make(run, lambda features, labels: None, "f").train(forever, steps=1))


def model_fn_of_an_estimator(run):
    estimator = make(run, params={"rate": 0.3})
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        spec = estimator.model_fn({"x": tf.constant(X)}, tf.constant(Y), "train", estimator.config)
        run.note("fields", list(spec._fields))
        run.note("loss", spec.loss.shape.as_list())


def forms_of_constructors(run):
    config = tf.estimator.RunConfig(run.path("a"))
    run.note("folder of the config", tf.estimator.Estimator(linear, config=config).model_dir)
    run.attempt("two folders", lambda: tf.estimator.Estimator(linear, run.path("b"), config))
    run.attempt("same folder", lambda: tf.estimator.Estimator(linear, run.path("a"), config).model_dir)
    run.attempt("wrong config", lambda: tf.estimator.Estimator(linear, config={"model_dir": "a"}))
    run.attempt("config of dict", lambda: tf.estimator.Estimator(linear, config=5))
    run.note("folder is text", isinstance(tf.estimator.Estimator(linear).model_dir, str))
    run.attempt("unknown word", lambda: tf.estimator.Estimator(linear, folder="a"))
    run.note("bases", tf.estimator.Estimator.__name__)


def subclasses(run):
    class Mine(tf.estimator.Estimator):
        def __init__(self, folder):
            super().__init__(linear, folder)

        def more(self):
            return "more"

    class Wrong(Mine):
        def train(self, input_fn):
            return None

    run.note("more", Mine(run.path("mine")).more())
    run.note("weights", weights(Mine(run.path("mine")).train(forever, steps=2)))
    run.attempt("overrides", Wrong, run.path("wrong"))


def infinite_loss_goes_on(run):
    def model_fn(features, labels, mode):
        step = v1.train.get_global_step()
        loss = tf.cast(step, tf.float32) * np.inf + 1.0 if False else tf.where(step > 1, np.inf, 1.0)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=v1.assign_add(step, 1))

    make(run, model_fn).train(forever, steps=4)


def nan_loss_stops(run):
    def model_fn(features, labels, mode):
        step = v1.train.get_global_step()
        loss = tf.where(step > 1, np.nan, 1.0)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=v1.assign_add(step, 1))

    estimator = make(run, model_fn)
    run.attempt("train", estimator.train, forever, steps=4)


def train_op_forms(run):
    def model_fn(features, labels, mode, params):
        step = v1.train.get_global_step()
        loss = tf.reduce_mean(features["x"] ** 2)
        add = v1.assign_add(step, 1)
        forms = {
            "tensor": lambda: add,
            "operation": lambda: add.op if hasattr(add, "op") else add,
            "group": lambda: tf.group(add),
            "identity": lambda: tf.identity(add),
            "no step": tf.no_op,
        }
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=forms[params["form"]]())

    for form in ("tensor", "operation", "group", "identity"):
        estimator = make(run, model_fn, form, {"form": form})
        run.attempt(form, lambda estimator=estimator: estimator.train(forever, steps=2).get_variable_names())


def reference_variables(run):
    def model_fn(features, labels, mode):
        weight = v1.get_variable("r", [3, 1], use_resource=False, initializer=v1.ones_initializer())
        count = v1.get_variable("c", [], use_resource=False, trainable=False, initializer=v1.zeros_initializer())
        loss = tf.reduce_mean((tf.matmul(features["x"], weight) - labels) ** 2)
        with tf.control_dependencies([v1.assign_add(count, 1.0)]):
            train_op = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return weights(make(run, model_fn).train(forever, steps=3))


def own_global_step(run):
    def model_fn(features, labels, mode):
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_mean(features["x"])
        train_op = tf.group(v1.assign_add(step, 2))
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops={"m": v1.metrics.mean(loss)}
        )

    estimator = make(run, model_fn, save_checkpoints_steps=3).train(forever, max_steps=7)
    run.note("evaluated", estimator.evaluate(once))


def limits_that_a_step_of_two_meets(run):
    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        with tf.control_dependencies([spec.train_op]):
            return spec._replace(train_op=tf.group(v1.assign_add(v1.train.get_global_step(), 1)))

    for every in (2, 4):
        estimator = make(run, model_fn, name=f"every_{every}", save_checkpoints_steps=every)
        for limits in ({"steps": 2}, {"max_steps": 8}):
            estimator.train(forever, **limits)
            run.note(f"{every}, {limits}", int(estimator.get_variable_value("global_step")))


def soft_placement(run):
    run.ignore_files()  # 2.15 writes one file of a checkpoint for each device that the model names

    def model_fn(features, labels, mode, params):
        with tf.device("/GPU:0"):
            return linear(features, labels, mode, params)

    return weights(make(run, model_fn).train(forever, steps=2))


def session_config(run):
    options = v1.ConfigProto(intra_op_parallelism_threads=1, allow_soft_placement=True)
    return weights(make(run, session_config=options).train(forever, steps=2))


def device_fn(run):
    seen = []

    def place(operation):
        seen.append(operation.type)
        return "/device:CPU:0"

    make(run, device_fn=place).train(forever, steps=1)
    run.note("asked", bool(seen))


def learning_rate_schedules(run):
    def model_fn(features, labels, mode):
        step = v1.train.get_global_step()
        rate = v1.train.exponential_decay(0.1, step, 2, 0.5, staircase=True)
        rate = tf.cond(step < 1, lambda: rate * 0.5, lambda: rate)
        v1.summary.scalar("rate", rate)
        weight = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean((tf.matmul(features["x"], weight) - labels) ** 2)
        optimizer = v1.train.AdamOptimizer(rate)
        gradients = optimizer.compute_gradients(loss)
        clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in gradients], 0.5)
        v1.summary.scalar("norm", norm)
        v1.summary.histogram("w", weight)
        pairs = list(zip(clipped, [variable for _, variable in gradients]))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.apply_gradients(pairs, step))

    return weights(make(run, model_fn, save_summary_steps=1).train(forever, steps=5))


def moving_averages(run):
    def model_fn(features, labels, mode):
        weight = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
        average = tf.train.ExponentialMovingAverage(0.5, v1.train.get_global_step())
        predictions = tf.matmul(features["x"], weight)
        if mode == "infer":
            saver = v1.train.Saver(average.variables_to_restore([weight]))
            return tf.estimator.EstimatorSpec(
                mode,
                predictions={"p": predictions, "w": tf.reshape(weight, [1, 3]) + 0 * predictions},
                scaffold=v1.train.Scaffold(saver=saver),
            )
        loss = tf.reduce_mean((predictions - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        with tf.control_dependencies([train_op]):
            train_op = average.apply([weight])
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = make(run, model_fn).train(forever, steps=3)
    run.note("variables", weights(estimator))
    run.note("predicted", list(estimator.predict(once)))


def batch_norm(run):
    def model_fn(features, labels, mode):
        x = v1.layers.batch_normalization(features["x"], training=mode == "train", name="bn")
        predictions = v1.layers.dense(x, 1, kernel_initializer=v1.ones_initializer(), name="d")
        loss = tf.reduce_mean((predictions - labels) ** 2)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = v1.train.GradientDescentOptimizer(0.05).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions=predictions)

    estimator = make(run, model_fn).train(forever, steps=3)
    run.note("variables", weights(estimator))
    run.note("evaluated", estimator.evaluate(once))


def train_twice_with_other_inputs(run):
    estimator = make(run).train(forever, steps=2)
    estimator.train(data(batch=2), steps=2)
    estimator.train(lambda: ({"x": tf.constant(X)}, tf.constant(Y)), steps=2)
    return weights(estimator)
