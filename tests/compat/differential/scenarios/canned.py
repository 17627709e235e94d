"""Canned estimators of both APIs: variables, losses from fixed weights, metrics, predictions, exports."""

import numpy as np
import tensorflow as tf
from common import X, v1

fc = tf.feature_column
LABELS = (X.sum(1) > 0).astype(np.int64)
WORDS = np.array(["a", "b", "c", "a", "b", "c", "a", "d"])
CLASSES = np.array([0, 1, 2, 0, 1, 2, 0, 1])
APIS = {"v1": v1.estimator, "v2": tf.estimator}


def _input(labels, batch=4, weights=False, repeat=True):
    def input_fn():
        features = {"x": X, "word": WORDS, "n": np.arange(8) % 5}
        if weights:
            features["weight"] = np.linspace(0.5, 2, 8).astype(np.float32)
        dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch)
        return dataset.repeat() if repeat else dataset

    return input_fn


def _numeric():
    return [fc.numeric_column("x", (3,))]


def _words():
    return fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"], num_oov_buckets=1)


def _config():
    return tf.estimator.RunConfig(tf_random_seed=3)


def _fix(estimator, input_fn):
    """Train one step, then give every floating variable values that do not depend on random numbers."""
    estimator.train(input_fn, steps=1)
    names = estimator.get_variable_names()
    with tf.Graph().as_default():
        variables = []
        for name in names:
            value = estimator.get_variable_value(name)
            is_weight = (
                value.dtype == np.float32 and "training/" not in name and "Ada" not in name and "Ftrl" not in name
            )
            if "moving_variance" in name:
                value = np.full_like(value, 0.5)
            elif is_weight and value.ndim:
                value = np.sin(np.arange(value.size) + len(name)).reshape(value.shape).astype(np.float32) * 0.3
            elif value.dtype == np.float32 and value.ndim:
                value = np.full_like(value, 0.1)
            variables.append(v1.get_variable(name, initializer=value, use_resource=True))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            v1.train.Saver(variables).save(session, estimator.model_dir + "/model.ckpt", global_step=1)


def _play(run, name, make, labels, weights=False, is_random=True):
    """Train, evaluate and predict with an estimator; note what came out."""
    run.ignore_files()

    def play():
        estimator = make(run.path(name))
        input_fn = _input(labels, weights=weights)
        if is_random:
            _fix(estimator, input_fn)
        estimator.train(input_fn, steps=3)
        once = _input(labels, weights=weights, repeat=False)
        return {
            "variables": {item: estimator.get_variable_value(item) for item in estimator.get_variable_names()},
            "metrics": estimator.evaluate(once),
            "predictions": list(estimator.predict(once))[:2],
        }

    run.attempt(name, play)


def _dnn(run, api, **words):
    estimator = APIS[api]
    columns = _numeric()
    column = {"feature_columns": columns, "hidden_units": [4, 2], "config": _config()}
    _play(run, "classifier", lambda folder: estimator.DNNClassifier(model_dir=folder, **column, **words), LABELS)
    _play(
        run, "three", lambda folder: estimator.DNNClassifier(model_dir=folder, n_classes=3, **column, **words), CLASSES
    )
    _play(run, "regressor", lambda folder: estimator.DNNRegressor(model_dir=folder, **column, **words), X[:, :1])


def dnn_v1(run):
    _dnn(run, "v1")


def dnn_v2(run):
    _dnn(run, "v2")


def dnn_batch_norm_v1(run):
    _dnn(run, "v1", batch_norm=True)


def dnn_batch_norm_v2(run):
    _dnn(run, "v2", batch_norm=True)


def dnn_dropout_runs(run):
    run.ignore_files()
    for api, estimator in APIS.items():
        made = estimator.DNNClassifier([4], _numeric(), run.path(api), dropout=0.5, activation_fn=tf.nn.tanh)
        made.train(_input(LABELS), steps=2)
        run.note(api, sorted(made.evaluate(_input(LABELS, repeat=False))))


def _linear(run, api, **words):
    estimator = APIS[api]
    word = {"feature_columns": [*_numeric(), _words()], "config": _config(), **words}
    _play(
        run, "classifier", lambda folder: estimator.LinearClassifier(model_dir=folder, **word), LABELS, is_random=False
    )
    _play(
        run,
        "three",
        lambda folder: estimator.LinearClassifier(model_dir=folder, n_classes=3, **word),
        CLASSES,
        is_random=False,
    )
    _play(
        run,
        "regressor",
        lambda folder: estimator.LinearRegressor(model_dir=folder, label_dimension=2, **word),
        X[:, :2],
        is_random=False,
    )


def linear_v1(run):
    _linear(run, "v1")


def linear_v2(run):
    _linear(run, "v2")


def linear_combiner_v2(run):
    _linear(run, "v2", sparse_combiner="mean")


def optimizers_by_name(run):
    for api, estimator in APIS.items():
        for name in ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"):
            make = lambda folder, estimator=estimator, name=name: estimator.LinearRegressor(
                _numeric(), folder, optimizer=name
            )
            _play(run, f"{api} {name}", make, X[:, :1], is_random=False)
        run.attempt(
            f"{api} unknown",
            lambda estimator=estimator: estimator.LinearRegressor(_numeric(), optimizer="Nothing").train(
                _input(X[:, :1]), steps=1
            ),
        )


def optimizers_as_objects(run):
    forms = {
        "v1 object": ("v1", lambda: v1.train.GradientDescentOptimizer(0.1)),
        "v1 function": ("v1", lambda: lambda: v1.train.MomentumOptimizer(0.1, 0.9)),
        "v2 object": ("v2", lambda: tf.keras.optimizers.legacy.SGD(0.1)),
        "v2 function": ("v2", lambda: lambda: tf.keras.optimizers.legacy.Adam(0.1)),
        "v2 schedule": (
            "v2",
            lambda: (
                lambda: tf.keras.optimizers.legacy.SGD(
                    v1.train.exponential_decay(0.1, v1.train.get_global_step(), 1, 0.5)
                )
            ),
        ),
        "v2 new": ("v2", lambda: tf.keras.optimizers.SGD(0.1)),
        "v2 of v1": ("v2", lambda: v1.train.GradientDescentOptimizer(0.1)),
        "v1 of v2": ("v1", lambda: tf.keras.optimizers.legacy.SGD(0.1)),
    }
    for name, (api, form) in forms.items():
        _play(
            run,
            name,
            lambda folder, api=api, form=form: APIS[api].LinearRegressor(_numeric(), folder, optimizer=form()),
            X[:, :1],
            is_random=False,
        )


def combined_v1(run):
    _combined(run, "v1")


def combined_v2(run):
    _combined(run, "v2")


def _combined(run, api):
    estimator = APIS[api]
    words = {"linear_feature_columns": [_words()], "dnn_feature_columns": _numeric(), "dnn_hidden_units": [3]}
    _play(run, "classifier", lambda folder: estimator.DNNLinearCombinedClassifier(model_dir=folder, **words), LABELS)
    _play(run, "regressor", lambda folder: estimator.DNNLinearCombinedRegressor(model_dir=folder, **words), X[:, :1])
    _play(
        run,
        "linear only",
        lambda folder: estimator.DNNLinearCombinedClassifier(folder, linear_feature_columns=_numeric()),
        LABELS,
        is_random=False,
    )
    run.attempt(
        "nothing", lambda: estimator.DNNLinearCombinedClassifier(run.path("nothing")).train(_input(LABELS), steps=1)
    )


def baseline(run):
    for api, estimator in APIS.items():
        _play(
            run,
            f"{api} classifier",
            lambda folder: estimator.BaselineClassifier(folder, n_classes=3),
            CLASSES,
            is_random=False,
        )
        _play(run, f"{api} regressor", lambda folder: estimator.BaselineRegressor(folder), X[:, :1], is_random=False)


def weights_and_vocabularies(run):
    labels = np.array(["no", "yes"])[LABELS]
    for api, estimator in APIS.items():
        make = lambda folder: estimator.LinearClassifier(
            _numeric(), folder, label_vocabulary=["no", "yes"], weight_column="weight"
        )
        _play(run, f"{api} words", make, labels, weights=True, is_random=False)
        make = lambda folder: estimator.LinearRegressor(_numeric(), folder, weight_column=fc.numeric_column("weight"))
        _play(run, f"{api} column", make, X[:, :1], weights=True, is_random=False)
        run.attempt(
            f"{api} not in vocabulary",
            lambda: estimator.LinearClassifier(_numeric(), label_vocabulary=["no", "maybe"]).train(
                _input(labels), steps=3
            ),
        )
        run.attempt(
            f"{api} no weights",
            lambda: estimator.LinearClassifier(_numeric(), weight_column="weight").train(_input(LABELS), steps=1),
        )
        run.attempt(
            f"{api} label too large", lambda: estimator.LinearClassifier(_numeric()).train(_input(CLASSES), steps=3)
        )


def loss_reductions(run):
    reductions = {
        "v1": [v1.losses.Reduction.SUM, v1.losses.Reduction.MEAN, v1.losses.Reduction.SUM_OVER_BATCH_SIZE, "nothing"],
        "v2": [tf.keras.losses.Reduction.SUM, tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE, "nothing", "none"],
    }
    for api, kinds in reductions.items():
        for kind in kinds:
            make = lambda folder: APIS[api].LinearClassifier(_numeric(), folder, loss_reduction=kind)
            _play(run, f"{api} {kind}", make, LABELS, is_random=False)


def feature_columns(run):
    words = _words()
    number = fc.numeric_column("n", dtype=tf.int64)
    buckets = fc.bucketized_column(fc.numeric_column("n"), [1, 3])
    columns = {
        "indicator": lambda: [fc.indicator_column(words)],
        "embedding": lambda: [fc.embedding_column(words, 2)],
        "hash": lambda: [fc.indicator_column(fc.categorical_column_with_hash_bucket("word", 5))],
        "identity": lambda: [fc.indicator_column(fc.categorical_column_with_identity("n", 5))],
        "buckets": lambda: [buckets],
        "crossed": lambda: [fc.indicator_column(fc.crossed_column([words, buckets], 7))],
        "shared": lambda: fc.shared_embeddings([words, fc.categorical_column_with_identity("n", 5)], 2),
        "number": lambda: [number],
        "normalized": lambda: [fc.numeric_column("x", (3,), normalizer_fn=lambda x: x * 2)],
    }
    for api, estimator in APIS.items():
        for name, make_columns in columns.items():
            make = lambda folder: estimator.DNNRegressor([2], make_columns(), folder)
            _play(run, f"{api} {name}", make, X[:, :1])


def sparse_linear_columns(run):
    words = _words()
    columns = {
        "weighted": [fc.weighted_categorical_column(words, "weight")],
        "crossed": [fc.crossed_column(["word", fc.bucketized_column(fc.numeric_column("n"), [2])], 6)],
        "hash": [fc.categorical_column_with_hash_bucket("n", 4, dtype=tf.int64)],
    }
    for api, estimator in APIS.items():
        for name, made in columns.items():
            make = lambda folder: estimator.LinearRegressor(made, folder)
            _play(run, f"{api} {name}", make, X[:, :1], weights=True, is_random=False)


def parse_example_specs(run):
    def shown(spec):
        return {key: [type(value).__name__, str(getattr(value, "dtype", ""))] for key, value in spec.items()}

    for api, estimator in APIS.items():
        for name in ("classifier_parse_example_spec", "regressor_parse_example_spec"):
            make = getattr(estimator, name)
            run.attempt(f"{api} {name}", lambda: shown(make(_numeric(), label_key="y", weight_column="w")))
            run.attempt(f"{api} {name} twice", lambda: shown(make(_numeric(), label_key="x")))


def exports_of_a_classifier(run):
    for api, estimator in APIS.items():
        made = estimator.LinearClassifier(_numeric(), run.path(api))
        made.train(_input(LABELS), steps=1)
        receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(fc.make_parse_example_spec(_numeric()))
        path = made.export_saved_model(run.path(f"export_{api}"), receiver)
        with tf.Graph().as_default(), v1.Session() as session:
            graph = v1.saved_model.load(session, ["serve"], path.decode())
            signatures = {}
            for key, signature in graph.signature_def.items():
                signatures[key] = [signature.method_name, sorted(signature.inputs), sorted(signature.outputs)]
            run.note(api, signatures)


def estimators_with_heads(run):
    heads = {
        "binary": (lambda: tf.estimator.BinaryClassHead(thresholds=[0.3, 0.7]), LABELS),
        "multi class": (lambda: tf.estimator.MultiClassHead(3), CLASSES),
        "multi label": (lambda: tf.estimator.MultiLabelHead(2, thresholds=[0.5]), np.stack([LABELS, 1 - LABELS], 1)),
        "regression": (lambda: tf.estimator.RegressionHead(2), X[:, :2]),
        "poisson": (lambda: tf.estimator.PoissonRegressionHead(), np.abs(X[:, :1])),
        "logistic": (lambda: tf.estimator.LogisticRegressionHead(), LABELS.astype(np.float32)[:, None]),
        "weighted": (lambda: tf.estimator.BinaryClassHead(weight_column="weight", name="h"), LABELS),
    }
    for name, (head, labels) in heads.items():
        _play(
            run,
            name,
            lambda folder, head=head: tf.estimator.LinearEstimator(head(), _numeric(), folder),
            labels,
            weights=True,
            is_random=False,
        )
        _play(
            run,
            f"dnn {name}",
            lambda folder, head=head: tf.estimator.DNNEstimator(head(), [2], _numeric(), folder),
            labels,
            weights=True,
        )
        _play(
            run,
            f"v1 {name}",
            lambda folder, head=head: v1.estimator.LinearEstimator(head(), _numeric(), folder),
            labels,
            weights=True,
            is_random=False,
        )
    _play(
        run,
        "baseline",
        lambda folder: tf.estimator.BaselineEstimator(tf.estimator.RegressionHead(), folder),
        X[:, :1],
        is_random=False,
    )


def multi_head(run):
    run.ignore_files()

    def input_fn():
        labels = {"one": LABELS, "two": X[:, :1]}
        return tf.data.Dataset.from_tensor_slices(({"x": X}, labels)).batch(4)

    one, two = tf.estimator.BinaryClassHead(name="one"), tf.estimator.RegressionHead(name="two")
    head = tf.estimator.MultiHead([one, two], [0.3, 0.7])
    estimator = tf.estimator.LinearEstimator(head, _numeric(), run.path("model"))
    estimator.train(input_fn)
    run.note("metrics", estimator.evaluate(input_fn))
    run.note(
        "predictions", [{str(key): value for key, value in row.items()} for row in estimator.predict(input_fn)][:1]
    )


def head_alone(run):
    run.ignore_files()
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        head = tf.estimator.RegressionHead(label_dimension=1)
        run.note("size", head.logits_dimension)
        run.note("name", head.name)
        weights = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
        logits = tf.matmul(tf.constant(X), weights)
        for mode in ("train", "eval", "infer"):
            words = (
                {"train_op_fn": lambda loss: v1.assign_add(v1.train.get_global_step(), 1)} if mode == "train" else {}
            )
            labels = None if mode == "infer" else tf.constant(X[:, :1])
            spec = head.create_estimator_spec({"x": X}, mode, logits, labels, **words)
            run.note(
                mode, [sorted(spec.predictions), sorted(spec.eval_metric_ops or {}), sorted(spec.export_outputs or {})]
            )
        run.attempt(
            "no optimizer", lambda: head.create_estimator_spec({"x": X}, "train", logits, tf.constant(X[:, :1]))
        )
        run.attempt(
            "logits", lambda: head.create_estimator_spec({"x": X}, "eval", tf.constant(X), tf.constant(X[:, :1]))
        )
        run.attempt("labels", lambda: head.create_estimator_spec({"x": X}, "eval", logits, tf.constant(X)))
        run.attempt("none", lambda: head.create_estimator_spec({"x": X}, "eval", logits, None))


def recurrent(run):
    run.ignore_files()

    def input_fn():
        words = tf.sparse.from_dense([["a", "b"], ["c", ""]])
        dataset = tf.data.Dataset.from_tensors(({"word": words}, tf.constant([[0], [1]])))
        return dataset.repeat(3)

    column = fc.embedding_column(fc.sequence_categorical_column_with_vocabulary_list("word", ["a", "b", "c"]), 2)
    for cell in ("simple_rnn", "lstm", "gru"):
        estimator = tf.estimator.experimental.RNNClassifier(
            [column], units=[3], cell_type=cell, model_dir=run.path(cell)
        )
        estimator.train(input_fn)
        run.note(cell, sorted(estimator.evaluate(input_fn)))
        run.note(
            f"{cell} variables",
            {name: list(estimator.get_variable_value(name).shape) for name in estimator.get_variable_names()},
        )


def kmeans(run):
    run.ignore_files()
    points = np.array([[0.0, 0], [0, 1], [10, 10], [10, 11]], np.float32)

    def input_fn():
        return tf.data.Dataset.from_tensors({"x": points}).repeat(5)

    estimator = v1.estimator.experimental.KMeans(
        2, run.path("model"), initial_clusters=points[[0, 2]], use_mini_batch=False
    )
    estimator.train(input_fn)
    run.note("centers", estimator.cluster_centers())
    run.note("score", estimator.score(lambda: tf.data.Dataset.from_tensors({"x": points})))
    run.note("index", list(estimator.predict_cluster_index(lambda: tf.data.Dataset.from_tensors({"x": points}))))
    run.note("distance", list(estimator.transform(lambda: tf.data.Dataset.from_tensors({"x": points}))))


def logit_builders(run):
    run.ignore_files()
    experimental = v1.estimator.experimental
    with tf.Graph().as_default():
        linear = experimental.linear_logit_fn_builder(2, _numeric())
        run.note("linear", linear({"x": tf.constant(X)}).shape.as_list())
        dnn = experimental.dnn_logit_fn_builder(2, [3], _numeric(), tf.nn.relu, None, None, False)
        run.note("dnn", dnn({"x": tf.constant(X)}, "train").shape.as_list())
        run.note("variables", sorted(variable.op.name for variable in v1.global_variables()))


def sdca(run):
    run.ignore_files()
    optimizer = tf.estimator.experimental.LinearSDCA("id", symmetric_l2_regularization=0.5)

    def input_fn():
        features = {"x": X, "id": np.arange(8).astype(str)}
        return tf.data.Dataset.from_tensor_slices((features, X[:, :1])).batch(8).repeat()

    estimator = tf.estimator.LinearRegressor(_numeric(), run.path("model"), optimizer=optimizer)
    estimator.train(input_fn, steps=4)
    run.note("is fitted", estimator.evaluate(input_fn, steps=1)["average_loss"] < 0.01)


def boosted_trees(run):
    run.attempt("is there", lambda: hasattr(tf.estimator, "BoostedTreesClassifier"))


def warm_start_of_a_classifier(run):
    source = tf.estimator.LinearClassifier(_numeric(), run.path("source"))
    source.train(_input(LABELS), steps=3)
    run.ignore_files()
    warm = tf.estimator.LinearClassifier(_numeric(), run.path("warm"), warm_start_from=source.model_dir)
    warm.train(_input(LABELS), steps=1)
    run.note(
        "weights", {name: warm.get_variable_value(name) for name in warm.get_variable_names() if "linear_model" in name}
    )
