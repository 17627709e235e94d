"""tensorflow-hub 0.15.0: a hub.Module in a model_fn, and LatestModuleExporter in train_and_evaluate."""

import os

import tensorflow as tf
import tensorflow_hub as hub
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


def module_fn():
    inputs = v1.placeholder(tf.float32, [None, 2])
    hub.add_signature(inputs=inputs, outputs=v1.layers.dense(inputs, 4, tf.nn.relu, name="hidden"))


def model_fn(features, labels, mode):
    module = hub.Module(hub.create_module_spec(module_fn), trainable=True, name="encoder")
    hub.register_module_for_export(module, "encoder")
    logits = v1.layers.dense(module(features["x"]), 2)
    predictions = {"classes": tf.argmax(logits, 1)}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = v1.train.AdamOptimizer(0.05).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
exporter = hub.LatestModuleExporter("modules", serving)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(endless, max_steps=6),
    tf.estimator.EvalSpec(batches, exporters=exporter, start_delay_secs=0, throttle_secs=0),
)
(version,) = os.listdir(os.path.join(MODEL_DIR, "export", "modules"))
with tf.Graph().as_default(), v1.Session() as session:
    again = hub.Module(os.path.join(MODEL_DIR, "export", "modules", version, "encoder"))
    session.run(v1.global_variables_initializer())
    assert session.run(again([[1.0, 2.0]])).shape == (1, 4)
evaluate_predict_export(estimator, batches, serving)
