"""Exports: receivers, signatures, several modes, exporters, and train_and_evaluate."""

import os

import tensorflow as tf
from common import X, Y, forever, linear, make, once, serving, v1, weights

Spec = tf.estimator.EstimatorSpec
export = tf.estimator.export


def _signatures(path):
    path = path.decode() if isinstance(path, bytes) else path
    with tf.Graph().as_default(), v1.Session() as session:
        shown = {}
        tags = [["serve"], ["train"], ["eval"]]
        for tag in tags:
            try:
                meta = v1.saved_model.load(session, tag, path)
            except RuntimeError:
                continue
            for name, signature in meta.signature_def.items():
                shown[f"{tag[0]} {name}"] = [
                    signature.method_name,
                    {key: [d.size for d in info.tensor_shape.dim] for key, info in signature.inputs.items()},
                    {key: [d.size for d in info.tensor_shape.dim] for key, info in signature.outputs.items()},
                ]
        return shown


def _serve(path, feeds):
    path = path.decode() if isinstance(path, bytes) else path
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        fed = {signature.inputs[name].name: value for name, value in feeds.items()}
        return {name: session.run(info.name, fed) for name, info in signature.outputs.items()}


def raw_receiver(run):
    estimator = make(run).train(forever, steps=3)
    path = estimator.export_saved_model(run.path("export"), serving)
    run.note("type", type(path).__name__)
    run.note("parent", os.path.basename(os.path.dirname(path)).decode())
    run.note("signatures", _signatures(path))
    run.note("served", _serve(path, {"x": X}))


def parsing_receiver(run):
    estimator = make(run).train(forever, steps=3)
    spec = {"x": tf.io.FixedLenFeature([3], tf.float32)}
    path = estimator.export_saved_model(run.path("export"), export.build_parsing_serving_input_receiver_fn(spec))
    run.note("signatures", _signatures(path))
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=X[0]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
    run.note("served", _serve(path, {"examples": [example]}))


def arguments_of_export(run):
    estimator = make(run, save_checkpoints_steps=1).train(forever, steps=3)
    extra = run.path("words.txt")
    with open(extra, "w") as file:
        file.write("words")
    first = estimator.export_saved_model(
        run.path("a"), serving, {"sub/words.txt": extra}, True, run.path("model", "model.ckpt-1")
    )
    second = estimator.export_saved_model(run.path("a"), serving)
    run.note("different", first != second)
    run.note("files", sorted(os.listdir(first)))
    run.note("extra", sorted(os.listdir(os.path.join(first, b"assets.extra", b"sub"))))
    run.note("served", [_serve(path, {"x": X}) for path in (first, second)])
    run.attempt("no receiver", estimator.export_saved_model, run.path("b"), None)
    run.attempt("no checkpoint", make(run, name="other").export_saved_model, run.path("b"), serving)
    run.attempt("bad checkpoint", lambda: estimator.export_saved_model(run.path("b"), serving, checkpoint_path="none"))


def outputs(run):
    def model(make_outputs):
        def model_fn(features, labels, mode):
            w = v1.get_variable("w", [3, 2], initializer=v1.ones_initializer())
            logits = tf.matmul(features["x"], w)
            predictions = {"logits": logits, "class": tf.as_string(tf.argmax(logits, 1))}
            loss = tf.reduce_mean(logits)
            step = v1.assign_add(v1.train.get_global_step(), 1)
            exports = make_outputs(predictions) if mode == "infer" else None
            return Spec(mode, predictions, loss, step, export_outputs=exports)

        return model_fn

    forms = {
        "none": lambda p: None,
        "regression": lambda p: {"serving_default": export.RegressionOutput(p["logits"][:, :1])},
        "classification": lambda p: {"a": export.ClassificationOutput(tf.sigmoid(p["logits"]), p["class"][:, None])},
        "scores": lambda p: {"a": export.ClassificationOutput(scores=p["logits"])},
        "two": lambda p: {"serving_default": export.PredictOutput(p), "other": export.PredictOutput(p["logits"])},
        "tensor": lambda p: {"b": export.PredictOutput(p["logits"])},
        "refused value": lambda p: {"b": p["logits"]},
        "refused classes": lambda p: {"b": export.ClassificationOutput(classes=p["logits"])},
        "refused regression": lambda p: {"b": export.RegressionOutput(p["class"])},
        "refused empty": lambda p: {"b": export.ClassificationOutput()},
    }
    for name, form in forms.items():
        estimator = make(run, model(form), name.replace(" ", "_")).train(forever, steps=1)
        run.attempt(
            name, lambda one=estimator, n=name: _signatures(one.export_saved_model(run.path(f"e {n}"), serving))
        )


def receivers(run):
    def shown(receiver):
        return [
            sorted(receiver.features) if isinstance(receiver.features, dict) else "tensor",
            sorted(receiver.receiver_tensors),
            receiver.receiver_tensors_alternatives and sorted(receiver.receiver_tensors_alternatives),
        ]

    t = lambda: tf.constant([[1.0]])
    forms = {
        "dict": lambda: export.ServingInputReceiver({"a": t()}, {"b": t()}),
        "tensors": lambda: export.ServingInputReceiver(t(), t()),
        "number keys": lambda: export.ServingInputReceiver({1: t()}, {"b": t()}),
        "receiver number keys": lambda: export.ServingInputReceiver({"a": t()}, {1: t()}),
        "alternatives": lambda: export.ServingInputReceiver({"a": t()}, {"b": t()}, {"c": {"d": t()}, "e": t()}),
        "bad alternatives": lambda: export.ServingInputReceiver({"a": t()}, {"b": t()}, [t()]),
        "sparse": lambda: export.ServingInputReceiver({"a": tf.sparse.from_dense(t())}, {"b": t()}),
        "sparse receiver": lambda: export.ServingInputReceiver({"a": t()}, {"b": tf.sparse.from_dense(t())}),
        "numbers": lambda: export.ServingInputReceiver({"a": 1.0}, {"b": t()}),
        "none": lambda: export.ServingInputReceiver(None, {"b": t()}),
        "none receiver": lambda: export.ServingInputReceiver({"a": t()}, None),
        "tensor": lambda: export.TensorServingInputReceiver(t(), t()),
        "tensor of dict": lambda: export.TensorServingInputReceiver({"a": t()}, t()),
        "tensor of none": lambda: export.TensorServingInputReceiver(None, t()),
        "raw dict": lambda: export.build_raw_serving_input_receiver_fn({"a": t()}, 4)(),
        "raw ragged rank": lambda: export.build_raw_serving_input_receiver_fn(
            {"a": v1.placeholder(tf.float32, None), "b": v1.placeholder(tf.float32, [None, 2])}
        )(),
        "parsing": lambda: export.build_parsing_serving_input_receiver_fn({"a": tf.io.VarLenFeature(tf.int64)}, 3)(),
    }
    for name, form in forms.items():
        with tf.Graph().as_default():
            run.attempt(name, lambda form=form: shown(form()))
    for name in ("raw dict", "raw ragged rank", "parsing"):
        with tf.Graph().as_default():
            run.attempt(
                f"{name} shapes",
                lambda n=name: {
                    key: [str(value.shape), value.dtype.name, value.op.name]
                    for key, value in forms[n]().receiver_tensors.items()
                },
            )


def supervised_receivers(run):
    build = tf.estimator.experimental.build_raw_supervised_input_receiver_fn
    forms = {
        "dicts": lambda: build({"a": tf.constant(X)}, {"b": tf.constant(Y)})(),
        "arrays": lambda: build(tf.constant(X), tf.constant(Y), 2)(),
        "same key": lambda: build({"a": tf.constant(X)}, {"a": tf.constant(Y)})(),
        "tensors": lambda: build({"a": tf.constant(X)}, tf.constant(Y))(),
        "placeholders": lambda: build(
            {"a": v1.placeholder(tf.float32, None)}, {"b": v1.placeholder(tf.int64, [None])}
        )(),
    }
    for name, form in forms.items():
        with tf.Graph().as_default():
            run.attempt(
                name,
                lambda form=form: {
                    key: [str(value.shape), value.dtype.name] for key, value in form().receiver_tensors.items()
                },
            )


def _supervised():
    build = tf.estimator.experimental.build_raw_supervised_input_receiver_fn
    return build({"x": tf.constant(X)}, tf.constant(Y))()


def several_modes(run):
    estimator = make(run).train(forever, steps=2)
    maps = {"train": _supervised, "eval": _supervised, "infer": serving}
    path = estimator.experimental_export_all_saved_models(run.path("export"), maps)
    run.note("signatures", _signatures(path))
    run.note(
        "evaluation", _signatures(estimator.experimental_export_all_saved_models(run.path("b"), {"eval": maps["eval"]}))
    )
    run.attempt("no mode", estimator.experimental_export_all_saved_models, run.path("c"), {})
    run.attempt("other mode", estimator.experimental_export_all_saved_models, run.path("c"), {"other": serving})
    run.note(
        "one mode",
        _signatures(estimator.export_saved_model(run.path("d"), maps["eval"], experimental_mode="eval")),
    )


def variables_of_one_mode(run):
    def model(modes):
        def model_fn(features, labels, mode, params):
            if mode in modes:
                v1.get_variable("only", [], initializer=v1.ones_initializer())
            return linear(features, labels, mode, params)

        return model_fn

    maps = {"train": _supervised, "infer": serving}
    for modes in (("infer",), ("train",), ("train", "infer")):
        name = "_".join(modes)
        estimator = make(run, model(modes), name).train(forever, steps=1)
        run.attempt(
            name,
            lambda one=estimator, n=name: bool(one.experimental_export_all_saved_models(run.path(f"export {n}"), maps)),
        )


def asset_files_and_tables(run):
    words = run.path("words.txt")
    os.makedirs(run.folder, exist_ok=True)
    with open(words, "w") as file:
        file.write("a\nb\n")

    def model_fn(features, labels, mode):
        initializer = tf.lookup.TextFileInitializer(
            words, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        table = tf.lookup.StaticHashTable(initializer, -1)
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        rows = table.lookup(features["word"])
        loss = tf.reduce_mean(w) + tf.cast(tf.reduce_sum(rows), tf.float32)
        with tf.control_dependencies([loss]):
            step = v1.assign_add(v1.train.get_global_step(), 1)
        return Spec(mode, {"row": rows}, loss, step)

    data = lambda: tf.data.Dataset.from_tensors({"word": ["a", "b", "c"]}).repeat(2)
    estimator = make(run, model_fn).train(data)
    run.note("evaluated", estimator.evaluate(data))
    run.note("predicted", list(estimator.predict(data)))
    receiver = export.build_raw_serving_input_receiver_fn({"word": tf.constant(["a"])})
    path = estimator.export_saved_model(run.path("export"), receiver)
    os.remove(words)
    run.note("served", _serve(path, {"word": ["b", "z"]}))


def exporters(run):
    calls = []

    class Own(tf.estimator.Exporter):
        @property
        def name(self):
            return "own"

        def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
            calls.append([export_path, os.path.basename(checkpoint_path), sorted(eval_result), is_the_final_export])
            return "mine"

    kept = [
        tf.estimator.FinalExporter("final", serving),
        tf.estimator.LatestExporter("latest", serving, exports_to_keep=2),
        tf.estimator.BestExporter("best", serving, exports_to_keep=1),
        Own(),
    ]
    estimator = make(run, save_checkpoints_steps=2)
    train = tf.estimator.TrainSpec(forever, max_steps=6)
    evaluation = tf.estimator.EvalSpec(once, exporters=kept, start_delay_secs=0, throttle_secs=0)
    metrics, exported = tf.estimator.train_and_evaluate(estimator, train, evaluation)
    run.note("metrics", metrics)
    run.note("exported", [type(one).__name__ for one in exported])
    run.note("calls", calls)
    counts = {name: len(os.listdir(run.path("model", "export", name))) for name in ("final", "latest", "best")}
    run.note("counts", counts)


def exporters_alone(run):
    estimator = make(run).train(forever, steps=2)

    def call(exporter, loss, is_final=False):
        result = {"loss": loss, "global_step": 2}
        path = exporter.export(estimator, run.path(exporter.name), estimator.latest_checkpoint(), result, is_final)
        return path is not None

    best = tf.estimator.BestExporter("best", serving, event_file_pattern=None)
    run.note("best", [call(best, loss) for loss in (5.0, 6.0, 4.0, 4.0)])
    higher = tf.estimator.BestExporter(
        "higher", serving, None, lambda best_eval_result, current_eval_result: current_eval_result["loss"] > 5
    )
    run.note("own function", [call(higher, loss) for loss in (1.0, 6.0, 4.0)])
    final = tf.estimator.FinalExporter("final", serving)
    run.note("final", [call(final, 1.0), call(final, 1.0, True)])
    run.attempt("no loss", lambda: best.export(estimator, run.path("b"), estimator.latest_checkpoint(), {}, False))
    forms = {
        "keep zero": lambda: tf.estimator.LatestExporter("a", serving, exports_to_keep=0),
        "best keep zero": lambda: tf.estimator.BestExporter("a", serving, exports_to_keep=0),
        "no function": lambda: tf.estimator.BestExporter("a", serving, compare_fn=None),
        "other function": lambda: tf.estimator.BestExporter("a", serving, compare_fn=lambda a, b: True),
        "no receiver": lambda: tf.estimator.BestExporter("a"),
        "keep all": lambda: tf.estimator.LatestExporter("a", serving, exports_to_keep=None),
    }
    for name, form in forms.items():
        run.attempt(name, lambda form=form: form().name)


def best_exporter_after_a_restart(run):
    counts = []
    for steps in (4, 8):
        estimator = make(run, save_checkpoints_steps=2)
        exporter = tf.estimator.BestExporter("best", serving, exports_to_keep=None)
        spec = tf.estimator.EvalSpec(once, exporters=exporter, start_delay_secs=0, throttle_secs=0)
        tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(forever, steps), spec)
        counts.append(len(os.listdir(run.path("model", "export", "best"))))
    return counts


def train_and_evaluate_forms(run):
    estimator = make(run, save_checkpoints_steps=2)
    hook = v1.train.SessionRunHook()
    train = tf.estimator.TrainSpec(forever, 4, [hook], [v1.train.CheckpointSaverListener()])
    spec = tf.estimator.EvalSpec(once, None, "mine", [hook], None, 0, 0)
    run.note("first", tf.estimator.train_and_evaluate(estimator, train, spec))
    run.note("again", tf.estimator.train_and_evaluate(estimator, train, spec))
    run.note("fields", [train._fields, spec._fields])
    until = tf.estimator.TrainSpec(lambda: once().take(1), None)
    run.note(
        "until the end", tf.estimator.train_and_evaluate(make(run, name="end"), until, tf.estimator.EvalSpec(once))
    )


def throttled(run):
    estimator = make(run, save_checkpoints_steps=1)
    spec = tf.estimator.EvalSpec(once, throttle_secs=1000)
    return tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(forever, 5), spec)


def refused_specs(run):
    exporter = tf.estimator.FinalExporter("a", serving)
    forms = {
        "train input": lambda: tf.estimator.TrainSpec(5),
        "train steps": lambda: tf.estimator.TrainSpec(forever, 0),
        "train hooks": lambda: tf.estimator.TrainSpec(forever, 1, [5]),
        "train listeners": lambda: tf.estimator.TrainSpec(forever, 1, saving_listeners=[5]),
        "eval input": lambda: tf.estimator.EvalSpec(None),
        "eval steps": lambda: tf.estimator.EvalSpec(once, 0),
        "eval name": lambda: tf.estimator.EvalSpec(once, name=5),
        "eval hooks": lambda: tf.estimator.EvalSpec(once, hooks=[5]),
        "eval delay": lambda: tf.estimator.EvalSpec(once, start_delay_secs=-1),
        "eval throttle": lambda: tf.estimator.EvalSpec(once, throttle_secs=-1),
        "same exporters": lambda: tf.estimator.EvalSpec(once, exporters=[exporter, exporter]),
        "exporter": lambda: tf.estimator.EvalSpec(once, exporters=5),
        "exporter list": lambda: tf.estimator.EvalSpec(once, exporters=[5]),
        "one exporter": lambda: len(tf.estimator.EvalSpec(once, exporters=exporter).exporters),
        "unnamed": lambda: tf.estimator.EvalSpec(once, exporters=tf.estimator.FinalExporter("", serving)),
        "no estimator": lambda: tf.estimator.train_and_evaluate(
            5, tf.estimator.TrainSpec(forever), tf.estimator.EvalSpec(once)
        ),
        "no train spec": lambda: tf.estimator.train_and_evaluate(make(run), 5, tf.estimator.EvalSpec(once)),
        "no eval spec": lambda: tf.estimator.train_and_evaluate(make(run), tf.estimator.TrainSpec(forever), 5),
    }
    for name, form in forms.items():
        run.attempt(name, lambda form=form: bool(form()))


def saved_model_estimator(run):
    from tensorflow_estimator.python.estimator.canned import saved_model_estimator as module

    estimator = make(run).train(forever, steps=2)
    maps = {"train": _supervised, "eval": _supervised, "infer": serving}
    path = estimator.experimental_export_all_saved_models(run.path("export"), maps).decode()
    again = module.SavedModelEstimator(path, run.path("again"))
    run.note("evaluated", again.evaluate(once))
    again.train(forever, steps=2)
    run.note("weights", weights(again))
    run.note("predicted", [row["p"] for row in again.predict(once)])


USED = (linear,)
