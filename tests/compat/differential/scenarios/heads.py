"""Heads of both kinds, alone and under canned estimators; partitioned, combined and sequential models."""

import numpy as np
import tensorflow as tf
from canned import APIS, CLASSES, LABELS, WORDS, _config, _input, _numeric, _play, _words
from common import X, v1

fc = tf.feature_column
BOTH = np.stack([LABELS, 1 - LABELS], 1)
V2_HEADS = {
    "binary": (lambda **words: tf.estimator.BinaryClassHead(**words), LABELS),
    "binary words": (
        lambda **words: tf.estimator.BinaryClassHead(label_vocabulary=["no", "yes"], **words),
        np.array(["no", "yes"])[LABELS],
    ),
    "multi class": (lambda **words: tf.estimator.MultiClassHead(3, **words), CLASSES),
    "multi class words": (
        lambda **words: tf.estimator.MultiClassHead(4, label_vocabulary=["a", "b", "c", "d"], **words),
        WORDS,
    ),
    "multi label": (
        lambda **words: tf.estimator.MultiLabelHead(2, thresholds=[0.2], classes_for_class_based_metrics=[1], **words),
        BOTH,
    ),
    "regression": (lambda **words: tf.estimator.RegressionHead(2, **words), X[:, :2]),
    "inverse link": (lambda **words: tf.estimator.RegressionHead(2, inverse_link_fn=tf.exp, **words), X[:, :2]),
    "poisson": (lambda **words: tf.estimator.PoissonRegressionHead(**words), np.abs(X[:, :1])),
    "logistic": (lambda **words: tf.estimator.LogisticRegressionHead(**words), LABELS.astype(np.float32)[:, None]),
    "own loss": (
        lambda **words: tf.estimator.RegressionHead(
            loss_fn=lambda labels, logits: tf.abs(labels - logits), label_dimension=1, **words
        ),
        X[:, :1],
    ),
}
WEIGHTS = np.linspace(0.5, 2, 8).astype(np.float32)[:, None]


def _spec_values(head, labels, mode, **words):
    """Return the values of a head's EstimatorSpec on fixed logits."""
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        v1.train.get_or_create_global_step()
        size = head.logits_dimension
        logits = tf.constant(np.sin(np.arange(8 * size)).reshape(8, size).astype(np.float32))
        features = {"x": tf.constant(X), "weight": tf.constant(WEIGHTS)}
        given = None if mode == "infer" else labels() if callable(labels) else tf.constant(labels)
        if mode == "train":
            words["train_op_fn"] = lambda loss: v1.assign_add(v1.train.get_global_step(), 1).op
        spec = head.create_estimator_spec(features, mode, logits, given, **words)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
            if spec.eval_metric_ops:
                session.run([pair[1] for pair in spec.eval_metric_ops.values()])
            values = {
                "loss": spec.loss,
                "metrics": {name: pair[0] for name, pair in (spec.eval_metric_ops or {}).items()},
                "predictions": {str(name): value for name, value in (spec.predictions or {}).items()},
            }
            shown = session.run({name: value for name, value in values.items() if value is not None})
        shown["exports"] = {str(name): type(value).__name__ for name, value in (spec.export_outputs or {}).items()}
        return shown


def v2_heads_alone(run):
    run.ignore_files()
    for name, (make, labels) in V2_HEADS.items():
        given = labels if labels.ndim == 2 else labels[:, None]
        for mode in ("train", "eval", "infer"):
            run.attempt(f"{name} {mode}", lambda make=make, given=given, mode=mode: _spec_values(make(), given, mode))
        run.attempt(
            f"{name} weighted", lambda make=make, given=given: _spec_values(make(weight_column="weight"), given, "eval")
        )
        run.attempt(f"{name} named", lambda make=make, given=given: _spec_values(make(name="h"), given, "eval"))
        run.attempt(
            f"{name} facts", lambda make=make: [make().name, make().logits_dimension, str(make().loss_reduction)]
        )
    words = lambda: tf.sparse.from_dense(np.stack([WORDS, WORDS[::-1]], 1))
    head = tf.estimator.MultiLabelHead(4, label_vocabulary=["a", "b", "c", "d"])
    run.attempt("sets of words", lambda: _spec_values(head, words, "eval"))


def v1_heads_alone(run):
    from tensorflow_estimator.python.estimator.canned import head as lib

    run.ignore_files()
    heads = {
        "binary": (lambda **words: lib._binary_logistic_head_with_sigmoid_cross_entropy_loss(**words), LABELS[:, None]),
        "thresholds": (
            lambda **words: lib._binary_logistic_head_with_sigmoid_cross_entropy_loss(thresholds=[0.3], **words),
            LABELS[:, None],
        ),
        "multi class": (
            lambda **words: lib._multi_class_head_with_softmax_cross_entropy_loss(3, **words),
            CLASSES[:, None],
        ),
        "words": (
            lambda **words: lib._multi_class_head_with_softmax_cross_entropy_loss(
                4, label_vocabulary=["a", "b", "c", "d"], **words
            ),
            WORDS[:, None],
        ),
        "regression": (lambda **words: lib._regression_head(label_dimension=2, **words), X[:, :2]),
        "one of both": (
            lambda **words: lib._binary_logistic_or_multi_class_head(2, None, None, "weighted_sum", **words),
            LABELS[:, None],
        ),
    }
    for name, (make, labels) in heads.items():
        for mode in ("train", "eval", "infer"):
            run.attempt(
                f"{name} {mode}", lambda make=make, labels=labels, mode=mode: _spec_values(make(), labels, mode)
            )
        run.attempt(
            f"{name} weighted",
            lambda make=make, labels=labels: _spec_values(make(weight_column="weight"), labels, "eval"),
        )


def canned_with_v2_heads(run):
    for name, (make, labels) in V2_HEADS.items():
        _play(
            run,
            name,
            lambda folder, make=make: tf.estimator.LinearEstimator(make(), _numeric(), folder),
            labels,
            is_random=False,
        )
    for name in ("multi label", "poisson", "multi class words"):
        make, labels = V2_HEADS[name]
        words = {"linear_feature_columns": [_words()], "dnn_feature_columns": _numeric(), "dnn_hidden_units": [3]}
        _play(
            run,
            f"combined {name}",
            lambda folder, make=make, words=words: tf.estimator.DNNLinearCombinedEstimator(make(), folder, **words),
            labels,
        )


def combined_with_options(run):
    for api, estimator in APIS.items():
        words = {
            "linear_feature_columns": [_words()],
            "dnn_feature_columns": _numeric(),
            "dnn_hidden_units": [4, 3],
            "batch_norm": True,
            "dnn_activation_fn": tf.nn.tanh,
            "linear_optimizer": "Ftrl",
            "dnn_optimizer": "Adam",
            "weight_column": "weight",
            "config": _config(),
        }
        _play(
            run,
            f"{api} classifier",
            lambda folder, estimator=estimator, words=words: estimator.DNNLinearCombinedClassifier(
                folder, n_classes=3, **words
            ),
            CLASSES,
            weights=True,
        )
        run.attempt(
            f"{api} no units",
            lambda estimator=estimator: estimator.DNNLinearCombinedRegressor(dnn_feature_columns=_numeric()),
        )


def partitioned_inputs(run):
    embedded = lambda: [fc.embedding_column(_words(), 4), *_numeric()]
    partitioner = lambda: v1.min_max_variable_partitioner(max_partitions=2, min_slice_size=16)
    dnn = v1.estimator.DNNClassifier
    _play(run, "dnn", lambda folder: dnn([3], embedded(), folder, input_layer_partitioner=partitioner()), LABELS)
    _play(
        run,
        "linear",
        lambda folder: v1.estimator.LinearClassifier(
            [fc.categorical_column_with_hash_bucket("word", 16)], folder, partitioner=partitioner()
        ),
        LABELS,
        is_random=False,
    )
    _play(
        run,
        "combined",
        lambda folder: v1.estimator.DNNLinearCombinedRegressor(
            folder,
            linear_feature_columns=[fc.categorical_column_with_hash_bucket("word", 16)],
            dnn_feature_columns=embedded(),
            dnn_hidden_units=[3],
            input_layer_partitioner=partitioner(),
        ),
        X[:, :1],
    )
    _play(
        run,
        "fixed parts",
        lambda folder: v1.estimator.DNNRegressor(
            [3], embedded(), folder, input_layer_partitioner=v1.fixed_size_partitioner(3)
        ),
        X[:, :1],
    )


def baselines(run):
    for name in ("Adam", "Ftrl", "SGD"):
        _play(
            run,
            f"v1 {name}",
            lambda folder, name=name: v1.estimator.BaselineClassifier(folder, optimizer=name, weight_column="weight"),
            LABELS,
            weights=True,
            is_random=False,
        )
    _play(
        run,
        "v1 words",
        lambda folder: v1.estimator.BaselineClassifier(folder, n_classes=4, label_vocabulary=["a", "b", "c", "d"]),
        WORDS,
        is_random=False,
    )
    _play(
        run,
        "v1 regressor",
        lambda folder: v1.estimator.BaselineRegressor(folder, label_dimension=2),
        X[:, :2],
        is_random=False,
    )
    for name in ("binary", "poisson"):
        make, labels = V2_HEADS[name]
        _play(
            run,
            f"v1 {name}",
            lambda folder, make=make: v1.estimator.BaselineEstimator(make(), folder),
            labels,
            is_random=False,
        )


def _sequences():
    return fc.embedding_column(fc.sequence_categorical_column_with_vocabulary_list("word", ["a", "b", "c"]), 2)


def _sequence_input(labels):
    def input_fn():
        words = tf.sparse.from_dense([["a", "b"], ["c", ""]])
        numbers = tf.sparse.from_dense([[1.0, 2.0], [3.0, 0.0]])
        return tf.data.Dataset.from_tensors(({"word": words, "n": numbers}, tf.constant(labels))).repeat(3)

    return input_fn


def recurrent_with_heads(run):
    run.ignore_files()
    experimental = tf.estimator.experimental
    forms = {
        "sequence numbers": lambda folder: experimental.RNNClassifier(
            [fc.sequence_numeric_column("n")], units=[3, 2], cell_type="gru", model_dir=folder
        ),
        "estimator": lambda folder: experimental.RNNEstimator(
            tf.estimator.BinaryClassHead(), [_sequences()], units=[3], cell_type="lstm", model_dir=folder
        ),
        "cell function": lambda folder: experimental.RNNClassifier(
            [_sequences()], rnn_cell_fn=lambda: tf.keras.layers.SimpleRNNCell(2), model_dir=folder
        ),
        "context": lambda folder: experimental.RNNClassifier(
            [_sequences()], [fc.numeric_column("c")], units=[3], model_dir=folder
        ),
    }
    for name, make in forms.items():

        def play(make=make, name=name):
            estimator = make(run.path(name))
            estimator.train(_sequence_input([[0], [1]]))
            variables = {
                item: list(estimator.get_variable_value(item).shape) for item in estimator.get_variable_names()
            }
            return variables, sorted(estimator.evaluate(_sequence_input([[0], [1]])))

        run.attempt(name, play)


def sequential_head(run):
    from tensorflow_estimator.python.estimator.head import sequential_head

    run.ignore_files()
    head = sequential_head.SequentialHeadWrapper(tf.estimator.BinaryClassHead(), "sequence_mask")
    run.note("facts", [head.name, head.logits_dimension])
    estimator = tf.estimator.experimental.RNNEstimator(
        head, [_sequences()], units=[3], return_sequences=True, model_dir=run.path("model")
    )

    def input_fn():
        words = tf.sparse.from_dense([["a", "b"], ["c", ""]])
        labels = tf.sparse.from_dense([[1, 2], [1, 0]])
        labels = tf.sparse.SparseTensor(labels.indices, labels.values - 1, labels.dense_shape)
        return tf.data.Dataset.from_tensors(({"word": words}, labels)).repeat(2)

    estimator.train(input_fn)
    run.note("metrics", sorted(estimator.evaluate(input_fn)))


def kmeans_options(run):
    run.ignore_files()
    points = np.array([[0.0, 0], [0, 1], [10, 10], [10, 11], [11, 10], [1, 0]], np.float32)

    def input_fn():
        return tf.data.Dataset.from_tensors({"x": points}).repeat(6)

    def once():
        return tf.data.Dataset.from_tensors({"x": points})

    kmeans = v1.estimator.experimental.KMeans
    forms = {
        "given": {"initial_clusters": points[[0, 2]], "use_mini_batch": False},
        "mini batch": {"initial_clusters": points[[0, 2]], "use_mini_batch": True},
        "steps": {"initial_clusters": points[[0, 2]], "mini_batch_steps_per_iteration": 2},
        "cosine": {"initial_clusters": points[[1, 2]], "distance_metric": "cosine", "use_mini_batch": False},
        "random": {"random_seed": 1},
        "plus plus": {"initial_clusters": "kmeans_plus_plus", "random_seed": 1, "use_mini_batch": False},
        "unknown": {"distance_metric": "other"},
        "column": {"initial_clusters": points[[0, 2]], "feature_columns": [fc.numeric_column("x", (2,))]},
    }
    for name, words in forms.items():

        def play(name=name, words=words):
            estimator = kmeans(2, run.path(name), **words)
            estimator.train(input_fn)
            score = estimator.score(once)
            groups = [int(index) for index in estimator.predict_cluster_index(once)]
            same = sorted(map(tuple, np.round(estimator.cluster_centers(), 3).tolist()))
            is_alike = [groups[0] == groups[1], groups[0] != groups[2], groups[2] == groups[3]]
            # The update of a mini batch reads its counts before or after adding to them: the numbers of 2.15 vary.
            return is_alike if words.get("use_mini_batch", True) else [same, score, is_alike]

        run.attempt(name, play)


def sdca_options(run):
    run.ignore_files()

    def input_fn(labels):
        features = {"x": X, "id": np.arange(8).astype(str), "word": WORDS, "weight": WEIGHTS[:, 0]}
        return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(8).repeat()

    make = tf.estimator.experimental.LinearSDCA
    forms = {
        "regressor": lambda optimizer, folder: tf.estimator.LinearRegressor(_numeric(), folder, optimizer=optimizer),
        "classifier": lambda optimizer, folder: tf.estimator.LinearClassifier(_numeric(), folder, optimizer=optimizer),
        "sparse": lambda optimizer, folder: tf.estimator.LinearClassifier(
            [fc.categorical_column_with_hash_bucket("word", 8)], folder, optimizer=optimizer
        ),
        "weighted": lambda optimizer, folder: tf.estimator.LinearClassifier(
            _numeric(), folder, optimizer=optimizer, weight_column="weight"
        ),
        "v1": lambda optimizer, folder: v1.estimator.LinearClassifier(_numeric(), folder, optimizer=optimizer),
    }
    for name, form in forms.items():

        def play(name=name, form=form):
            labels = X[:, :1] if name == "regressor" else LABELS
            optimizer = make("id", symmetric_l2_regularization=0.5, num_table_shards=1)
            estimator = form(optimizer, run.path(name))
            estimator.train(input_fn(labels), steps=4)
            names = [item for item in estimator.get_variable_names() if "linear" in item]
            shapes = {item: estimator.get_variable_value(item).shape for item in names}
            # SDCA visits the examples of a step in any order: the numbers of 2.15 vary.
            return shapes, estimator.evaluate(input_fn(labels), steps=1)["average_loss"] < 0.7

        run.attempt(name, play)


def train_and_evaluate_with_exporters(run):
    run.ignore_files()
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(fc.make_parse_example_spec(_numeric()))
    for api, estimator in APIS.items():
        config = tf.estimator.RunConfig(tf_random_seed=3, save_checkpoints_steps=2)
        made = estimator.LinearClassifier(_numeric(), run.path(api), config=config)
        exporters = [tf.estimator.LatestExporter("latest", receiver), tf.estimator.BestExporter("best", receiver)]
        evaluation = tf.estimator.EvalSpec(
            _input(LABELS, repeat=False), None, exporters=exporters, throttle_secs=0, start_delay_secs=0
        )
        metrics, exports = tf.estimator.train_and_evaluate(
            made, tf.estimator.TrainSpec(_input(LABELS), max_steps=4), evaluation
        )
        run.note(api, [metrics, [path is not None for path in exports]])


def warm_start_with_another_vocabulary(run):
    run.ignore_files()

    def columns(words):
        path = run.path(f"{len(words)}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(words))
        return [fc.categorical_column_with_vocabulary_file("word", path, len(words))], path

    old, old_path = columns(["a", "b", "c"])
    new, new_path = columns(["c", "x", "a", "b"])
    source = v1.estimator.LinearClassifier(old, run.path("source")).train(_input(LABELS), steps=3)
    info = v1.train.VocabInfo(new_path, 4, 0, old_path, 3)
    settings = tf.estimator.WarmStartSettings(source.model_dir, ".*word.*", {"linear/linear_model/word/weights": info})
    warm = v1.estimator.LinearClassifier(new, run.path("warm"), warm_start_from=settings)
    warm.train(_input(LABELS), steps=1)
    run.note("weights", {name: warm.get_variable_value(name) for name in warm.get_variable_names() if "linear" in name})


def served_predictions(run):
    run.ignore_files()
    for name, make in {
        "words": lambda folder: v1.estimator.LinearClassifier(
            _numeric(), folder, n_classes=4, label_vocabulary=["a", "b", "c", "d"]
        ),
        "v2 words": lambda folder: tf.estimator.LinearClassifier(
            _numeric(), folder, n_classes=4, label_vocabulary=["a", "b", "c", "d"]
        ),
    }.items():
        estimator = make(run.path(name)).train(_input(WORDS), steps=2)
        receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
        path = estimator.export_saved_model(run.path(f"export {name}"), receiver).decode()
        with tf.Graph().as_default(), v1.Session() as session:
            graph = v1.saved_model.load(session, ["serve"], path)
            for key, signature in sorted(graph.signature_def.items()):
                feeds = {signature.inputs[item].name: X[:2] for item in signature.inputs}
                values = {item: session.run(output.name, feeds) for item, output in signature.outputs.items()}
                run.note(f"{name} {key}", values)


USED = (_words, APIS)
