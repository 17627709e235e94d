"""A plain TensorFlow 1 script, not written for a CS system: columns, layers, losses, exporters, hooks."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
flags = tf.app.flags
flags.DEFINE_string("model_dir", "d_plain", "where")
flags.DEFINE_integer("train_steps", 6, "steps")
F = flags.FLAGS
rng = np.random.RandomState(0)
AGE = rng.randint(20, 60, 64).astype(np.float32)
JOB = rng.choice(["tech", "art", "none"], 64)
Y = (AGE > 40).astype(np.int32)


def columns():
    fc = tf.feature_column
    age = fc.numeric_column("age", normalizer_fn=lambda x: (x - 40) / 10)
    job = fc.categorical_column_with_vocabulary_list("job", ["tech", "art", "none"])
    return [
        age,
        fc.indicator_column(job),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("job", 8), 3),
        fc.bucketized_column(fc.numeric_column("age"), [30.0, 45.0]),
    ]


def model_fn(features, labels, mode, params):
    net = tf.feature_column.input_layer(features, params["columns"])
    for n in params["hidden"]:
        net = tf.layers.dense(net, n, activation=tf.nn.relu, kernel_regularizer=tf.keras.regularizers.l2(1e-3))
        net = tf.layers.dropout(net, 0.2, training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.layers.dense(net, 2)
    classes = tf.argmax(logits, 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        p = {"classes": classes, "prob": tf.nn.softmax(logits)}
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=p,
            export_outputs={
                "classes": tf.estimator.export.ClassificationOutput(scores=p["prob"]),
                "serving_default": tf.estimator.export.PredictOutput(p),
            },
        )
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) + tf.losses.get_regularization_loss()
    acc = tf.metrics.accuracy(labels, classes)
    tf.summary.scalar("acc", acc[1])
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(
            mode,
            loss=loss,
            eval_metric_ops={
                "acc": acc,
                "auc": tf.metrics.auc(labels, tf.nn.softmax(logits)[:, 1]),
                "fn": tf.metrics.false_negatives(labels, classes),
            },
            evaluation_hooks=[
                tf.train.SummarySaverHook(
                    1, output_dir=os.path.join(F.model_dir, "ev"), summary_op=tf.summary.merge_all()
                )
            ],
        )
    gs = tf.train.get_global_step()
    rate = tf.train.exponential_decay(0.05, gs, 3, 0.9, staircase=True)
    opt = tf.train.AdagradOptimizer(rate)

    count = tf.Variable(0, trainable=False, name="count", dtype=tf.int32)
    bump = tf.cond(tf.equal(gs % 2, 0), lambda: tf.assign_add(count, 1), lambda: tf.identity(count))
    gv = opt.compute_gradients(loss)
    gv = [(tf.clip_by_norm(g, 1.0), v) for g, v in gv if g is not None]
    with tf.control_dependencies([bump]):
        train_op = opt.apply_gradients(gv, gs)
    stop = tf.train.StopAtStepHook(last_step=1000)
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        training_hooks=[stop, tf.train.LoggingTensorHook({"rate": rate}, every_n_iter=2)],
        training_chief_hooks=[tf.train.StepCounterHook(2, output_dir=F.model_dir)],
    )


class Listener(tf.train.CheckpointSaverListener):
    def after_save(self, session, step):
        print("SAVED", int(step))


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    config = tf.estimator.RunConfig(
        model_dir=F.model_dir,
        tf_random_seed=7,
        save_checkpoints_steps=3,
        keep_checkpoint_max=2,
        session_config=tf.ConfigProto(allow_soft_placement=True, intra_op_parallelism_threads=1),
        log_step_count_steps=2,
    )
    params = {"columns": columns(), "hidden": [8, 4]}
    est = tf.estimator.Estimator(model_fn=model_fn, config=config, params=params)
    train_fn = tf.estimator.inputs.numpy_input_fn(
        {"age": AGE, "job": JOB}, Y, batch_size=8, num_epochs=None, shuffle=True
    )
    eval_fn = tf.estimator.inputs.numpy_input_fn(
        {"age": AGE, "job": JOB}, Y, batch_size=16, num_epochs=1, shuffle=False
    )
    est.train(train_fn, steps=F.train_steps, saving_listeners=[Listener()])
    r = est.evaluate(eval_fn)
    print("RESULT", sorted(r), int(r["global_step"]))
    rows = list(est.predict(eval_fn, predict_keys=["classes"]))
    print("ROWS", len(rows), rows[0])
    spec = tf.feature_column.make_parse_example_spec([tf.feature_column.numeric_column("age"), columns()[1]])
    recv = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    path = est.export_saved_model(os.path.join(F.model_dir, "ex"), recv)
    print("EXPORT", path)
    if hasattr(est, "export_savedmodel"):
        print("OLD", est.export_savedmodel(os.path.join(F.model_dir, "ex2"), recv))

    def recv2():
        p = {"age": tf.placeholder(tf.float32, [None, 1]), "job": tf.placeholder(tf.string, [None, 1])}
        return tf.estimator.export.ServingInputReceiver(p, p)

    best = tf.estimator.BestExporter("best", recv2, exports_to_keep=1)
    stop = tf.estimator.experimental.stop_if_no_decrease_hook(est, "loss", 4, run_every_secs=None, run_every_steps=1)
    out = tf.estimator.train_and_evaluate(
        est,
        tf.estimator.TrainSpec(train_fn, max_steps=18, hooks=[stop]),
        tf.estimator.EvalSpec(eval_fn, steps=None, exporters=[best], throttle_secs=0),
    )
    print("TE", out)
    warm = tf.estimator.Estimator(
        model_fn,
        F.model_dir + "_w",
        tf.estimator.RunConfig(save_checkpoints_steps=2),
        params,
        warm_start_from=tf.estimator.WarmStartSettings(F.model_dir, vars_to_warm_start=".*dense/kernel.*"),
    )
    warm.train(train_fn, steps=2)
    print("NAMES", warm.get_variable_names()[:4])
    ck = tf.train.latest_checkpoint(F.model_dir)
    print("CK", [n for n, _ in tf.train.list_variables(ck)][:3], est.latest_checkpoint() == ck)


if __name__ == "__main__":
    tf.app.run()
