"""tf.estimator.tpu with use_tpu=False: TPUEstimator, its spec and its configurations."""

import os

import tensorflow as tf
from common import X, Y, v1

tpu = v1.estimator.tpu


def _input(params):
    dataset = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
    return dataset.batch(params.get("batch_size", 1))


def _forever(params):
    return _input(params).repeat()


def _parts(features, labels, mode, params):
    weights = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
    predictions = tf.matmul(features["x"], weights)
    size = tf.fill([tf.shape(predictions)[0]], params.get("batch_size", -1))
    result = {"mode": mode, "predictions": {"p": predictions, "size": size}}
    if mode == "infer":
        result["export_outputs"] = {"serving_default": tf.estimator.export.PredictOutput({"p": predictions})}
        return result
    result["loss"] = tf.reduce_mean(tf.square(predictions - labels))
    if mode == "train":
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        result["train_op"] = optimizer.minimize(result["loss"], v1.train.get_global_step())
    return result


def _metrics(labels, size):
    return {"label": v1.metrics.mean(labels), "size": v1.metrics.mean(size)}


def _model(features, labels, mode, params):
    parts = _parts(features, labels, mode, params)
    if mode == "eval":
        parts["eval_metrics"] = (_metrics, [labels, parts["predictions"]["size"]])
    return tpu.TPUEstimatorSpec(**parts)


def _make(run, model_fn=_model, name="model", config=None, **words):
    config = config or tpu.RunConfig(model_dir=run.path(name), tf_random_seed=1, **words.pop("run", {}))
    given = {"train_batch_size": 4, "eval_batch_size": 8, "predict_batch_size": 2, **words}
    return tpu.TPUEstimator(model_fn, config=config, use_tpu=False, **given)


def _serving():
    return tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})()


def life(run):
    estimator = _make(run, params={"own": 5})
    run.note("params", estimator.params)
    run.note("same", estimator.train(_forever, max_steps=6) is estimator)
    run.note("metrics", estimator.evaluate(_input, steps=1))
    run.note("named", estimator.evaluate(_input, name="more"))
    run.note("rows", list(estimator.predict(_input)))
    run.note("batches", len(list(estimator.predict(_input, yield_single_examples=False))))
    run.note("keys", [sorted(row) for row in estimator.predict(_input, predict_keys=["p"])][:1])
    run.note("w", estimator.get_variable_value("w"))
    estimator.train(_forever, steps=2)
    run.note("step", estimator.get_variable_value("global_step"))


def export_on_cpu(run):
    run.ignore_files()
    estimator = _make(run, export_to_tpu=False)
    estimator.train(_forever, max_steps=1)
    path = estimator.export_saved_model(run.path("export"), _serving)
    with tf.Graph().as_default(), v1.Session() as session:
        graph = v1.saved_model.load(session, ["serve"], path.decode())
        signature = graph.signature_def["serving_default"]
        run.note("signature", [sorted(signature.inputs), sorted(signature.outputs)])
        run.note("result", session.run(signature.outputs["p"].name, {signature.inputs["x"].name: X[:1]}))
    run.attempt(
        "nowhere",
        lambda: _make(run, export_to_tpu=False, export_to_cpu=False).export_saved_model(run.path("other"), _serving),
    )


def estimator_spec_from_model_fn(run):
    def model_fn(features, labels, mode, params):
        parts = _parts(features, labels, mode, params)
        return tf.estimator.EstimatorSpec(**parts)

    estimator = _make(run, model_fn)
    estimator.train(_forever, max_steps=2)
    run.note("metrics", estimator.evaluate(_input))
    run.note("rows", len(list(estimator.predict(_input))))


def arguments_of_the_functions(run):
    seen = []

    def input_fn(params, config, mode):
        seen.append(["input", mode, sorted(params), type(config).__name__])
        return _input(params)

    def input_words(**words):
        seen.append(["words", sorted(words)])
        return _input(words["params"])

    def model_fn(features, labels, mode, config, params):
        seen.append(["model", mode, sorted(params), params["use_tpu"], type(config).__name__])
        return _model(features, labels, mode, params)

    estimator = _make(run, model_fn, params={"own": 1})
    estimator.train(input_fn, max_steps=2)
    estimator.evaluate(input_fn)
    list(estimator.predict(input_fn))
    run.attempt("words", lambda: bool(estimator.train(input_words, steps=1)))
    run.note("seen", seen)


def refused(run):
    config = lambda: tpu.RunConfig(model_dir=run.path("refused"))
    run.ignore_files()
    forms = {
        "no config": lambda: tpu.TPUEstimator(_model, use_tpu=False),
        "plain config": lambda: tpu.TPUEstimator(_model, config=tf.estimator.RunConfig(), use_tpu=False),
        "reserved": lambda: _make(run, params={"batch_size": 3}),
        "reserved context": lambda: _make(run, params={"context": 3}),
        "no params in model": lambda: _make(run, lambda features, labels, mode: None).train(_forever, max_steps=1),
        "no params in input": lambda: _make(run).train(lambda: _input({}), max_steps=1),
        "no train batch": lambda: tpu.TPUEstimator(_model, config=config(), train_batch_size=None),
        "no model": lambda: tpu.TPUEstimator(config=config(), use_tpu=False, train_batch_size=2),
        "model dirs": lambda: _make(run, model_dir=run.path("another")),
        "api version": lambda: _make(run, export_saved_model_api_version=3),
        "api version 2": lambda: bool(_make(run, export_saved_model_api_version=2)),
        "no batch sizes": lambda: bool(
            tpu.TPUEstimator(_model, config=config(), use_tpu=False).train(_forever, max_steps=1)
        ),
    }
    for name, form in forms.items():
        run.attempt(name, form)


def host_call(run):
    def model_fn(features, labels, mode, params):
        parts = _parts(features, labels, mode, params)

        def write(step, loss):
            writer = tf.summary.create_file_writer(run.path("host"), max_queue=1000)
            with writer.as_default(), tf.summary.record_if(True):
                tf.summary.scalar("told", loss[0], step=step[0])
                return v1.summary.all_v2_summary_ops()

        step = v1.train.get_or_create_global_step()
        tensors = [tf.reshape(step, [1]), tf.reshape(parts["loss"], [1])]
        return tpu.TPUEstimatorSpec(**parts, host_call=(write, tensors))

    _make(run, model_fn).train(_forever, max_steps=3)


def scaffold_and_hooks(run):
    seen = []

    class Hook(v1.train.SessionRunHook):
        def __init__(self, name):
            self._name = name

        def begin(self):
            seen.append([self._name, "begin"])

        def end(self, session):
            seen.append([self._name, "end"])

    def model_fn(features, labels, mode, params):
        parts = _parts(features, labels, mode, params)
        if mode == "infer":
            del parts["export_outputs"]

        def scaffold():
            seen.append(["scaffold", mode])
            return v1.train.Scaffold(init_fn=lambda scaffold, session: seen.append(["init", mode]))

        hooks = {
            name: [Hook(f"{name} of {mode}")] for name in ("training_hooks", "evaluation_hooks", "prediction_hooks")
        }
        return tpu.TPUEstimatorSpec(**parts, scaffold_fn=scaffold, **hooks)

    estimator = _make(run, model_fn)
    estimator.train(_forever, hooks=[Hook("given")], max_steps=2)
    estimator.evaluate(_input)
    list(estimator.predict(_input))
    run.note("seen", seen)


def metrics_as_words(run):
    def model_fn(features, labels, mode, params):
        parts = _parts(features, labels, mode, params)
        if mode == "eval":
            parts["eval_metrics"] = (_metrics, {"labels": labels, "size": parts["predictions"]["size"]})
        return tpu.TPUEstimatorSpec(**parts)

    estimator = _make(run, model_fn)
    estimator.train(_forever, max_steps=1)
    run.note("metrics", estimator.evaluate(_input))


def specs(run):
    run.ignore_files()

    def build(**words):
        with tf.Graph().as_default():
            v1.train.create_global_step()
            made = {"loss": tf.constant(1.0), "train_op": tf.no_op(), **words}
            for name, value in words.items():
                if callable(value) and name in ("eval_metrics", "host_call"):
                    made[name] = value()
            spec = tpu.TPUEstimatorSpec("train" if "eval_metrics" not in words else "eval", **made)
            shown = {name: type(value).__name__ for name, value in spec._asdict().items()}
            plain = spec.as_estimator_spec()
            return [shown, type(plain).__name__, sorted(plain.eval_metric_ops or {}), len(plain.training_hooks)]

    one = lambda: tf.constant([1.0])
    forms = {
        "plain": {},
        "metrics": {"eval_metrics": lambda: (lambda a: {"m": v1.metrics.mean(a)}, [one()])},
        "metrics in a list": {"eval_metrics": lambda: [lambda a: {"m": v1.metrics.mean(a)}, (one(),)]},
        "metrics no pair": {"eval_metrics": lambda: (lambda: {},)},
        "metrics not callable": {"eval_metrics": lambda: (5, [one()])},
        "metrics of a tensor": {"eval_metrics": lambda: (lambda a: {}, one())},
        "metrics other count": {"eval_metrics": lambda: (lambda a, b: {}, [one()])},
        "metrics a function": {"eval_metrics": lambda: lambda a: {}},
        "metrics of stars": {"eval_metrics": lambda: (lambda *a: {"m": v1.metrics.mean(a[0])}, [one(), one()])},
        "metrics of other words": {"eval_metrics": lambda: (lambda a: {}, {"b": one()})},
        "metrics with a default": {"eval_metrics": lambda: (lambda a, b=1: {"m": v1.metrics.mean(a)}, [one()])},
        "host call": {"host_call": lambda: (lambda a: tf.identity(a), [one()])},
        "host call of words": {"host_call": lambda: (lambda a: [tf.identity(a)], {"a": one()})},
        "host call no pair": {"host_call": lambda: (lambda a: a, [one()], 1)},
        "hooks": {"training_hooks": [v1.train.SessionRunHook()]},
        "not hooks": {"training_hooks": [1]},
        "scaffold": {"scaffold_fn": lambda: v1.train.Scaffold()},
        "scaffold not callable": {"scaffold_fn": 5},
    }
    for name, words in forms.items():
        run.attempt(name, build, **words)


def configurations(run):
    run.ignore_files()

    def shown(config):
        return {key: value for key, value in config._asdict().items() if key != "experimental_feed_hook"}

    forms = {
        "default": {},
        "loops": {"iterations_per_loop": 100, "num_shards": 8},
        "seconds": {"iterations_per_loop": "30s"},
        "bad loops": {"iterations_per_loop": 0},
        "bad text": {"iterations_per_loop": "many"},
        "shards": {"num_shards": 0},
        "cores": {"num_cores_per_replica": 3},
        "two cores": {"num_cores_per_replica": 2},
        "false": {"per_host_input_for_training": False},
        "host 2": {"per_host_input_for_training": tpu.InputPipelineConfig.PER_HOST_V2},
        "dims": {"input_partition_dims": [[1, 2]]},
        "sliced": {"eval_training_input_configuration": tpu.InputPipelineConfig.SLICED},
        "not sliced": {"eval_training_input_configuration": tpu.InputPipelineConfig.BROADCAST},
        "job": {"tpu_job_name": "worker"},
        "sleep": {"initial_infeed_sleep_secs": -1},
        "unknown": {"other": 1},
    }
    for name, words in forms.items():
        run.attempt(name, lambda words=words: shown(tpu.TPUConfig(**words)))
    pipeline = tpu.InputPipelineConfig
    run.note("pipeline", {name: getattr(pipeline, name) for name in dir(pipeline) if name.isupper()})


def run_configs(run):
    run.ignore_files()

    def shown(config):
        names = (
            "master",
            "evaluation_master",
            "save_checkpoints_steps",
            "model_dir",
            "is_chief",
            "log_step_count_steps",
        )
        return {**{name: getattr(config, name) for name in names}, "loops": config.tpu_config.iterations_per_loop}

    class Resolver:
        def master(self):
            return "grpc://resolved"

        def get_master(self):
            return self.master()

    forms = {
        "default": {},
        "loops": {"tpu_config": tpu.TPUConfig(7)},
        "master": {"master": "grpc://a"},
        "two masters": {"master": "grpc://a", "evaluation_master": "grpc://b"},
        "master here": {"master": ""},
        "evaluation only": {"evaluation_master": "grpc://b"},
        "steps": {"save_checkpoints_steps": 7, "model_dir": "there"},
        "both": {"master": "grpc://a", "cluster": Resolver()},
        "unknown": {"other": 1},
    }
    for name, words in forms.items():
        run.attempt(name, lambda words=words: shown(tpu.RunConfig(**words)))
    config = tpu.RunConfig(save_checkpoints_steps=7)
    run.attempt("replaced", lambda: shown(config.replace(tpu_config=tpu.TPUConfig(3), save_checkpoints_steps=8)))
    run.attempt("replaced master", lambda: shown(config.replace(master="grpc://c")))
    run.attempt("kind", lambda: isinstance(config, tf.estimator.RunConfig))
    run.attempt("no cluster", lambda: config.cluster)


def train_and_evaluate(run):
    estimator = _make(run, run={"save_checkpoints_steps": 2})
    train = tf.estimator.TrainSpec(_forever, max_steps=4)
    evaluation = tf.estimator.EvalSpec(_input, steps=1, throttle_secs=0, start_delay_secs=0)
    run.note("result", tf.estimator.train_and_evaluate(estimator, train, evaluation))


def cross_shard_optimizer(run):
    run.ignore_files()
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=1.0)
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.1))
        gradients = optimizer.compute_gradients(weight * 2)
        run.note("gradients", [[type(gradient).__name__, variable.op.name] for gradient, variable in gradients])
        run.note("variables", [variable.op.name for variable in optimizer.variables()])
        run.note("slots", optimizer.get_slot_names())


def model_dirs(run):
    config = tpu.RunConfig(model_dir=run.path("a"))
    run.note("of the config", os.path.basename(_make(run, config=config).model_dir))
    run.note("same", os.path.basename(_make(run, config=config, model_dir=run.path("a")).model_dir))
    run.note("of the call", os.path.basename(_make(run, config=tpu.RunConfig(), model_dir=run.path("b")).model_dir))
