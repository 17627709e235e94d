"""mesh-tensorflow 0.1.21: its own estimator recipe, with the mesh's checkpoint listener and restore hook."""

import mesh_tensorflow as mtf
import tensorflow as tf
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


def model_fn(features, labels, mode, params):
    step = v1.train.get_global_step()
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    batch, wide, hidden, classes = (
        mtf.Dimension(*each) for each in (("batch", 8), ("wide", 2), ("hidden", 4), ("classes", 2))
    )
    x = mtf.import_tf_tensor(mesh, tf.reshape(features["x"], [8, 2]), mtf.Shape([batch, wide]))
    h = mtf.layers.dense(x, hidden, reduced_dims=[wide], activation=mtf.relu, name="hidden")
    logits = mtf.layers.dense(h, classes, reduced_dims=[hidden], name="logits")
    loss = None
    if labels is not None:
        y = mtf.import_tf_tensor(mesh, tf.reshape(labels, [8]), mtf.Shape([batch]))
        loss = mtf.layers.softmax_cross_entropy_with_logits(logits, mtf.one_hot(y, classes), classes)
        loss = mtf.reduce_mean(loss)
    if mode == "train":
        gradients = mtf.gradients([loss], [each.outputs[0] for each in graph.trainable_variables])
        updates = mtf.optimize.AdafactorOptimizer().apply_grads(gradients, graph.trainable_variables)
    shape = mtf.convert_to_shape("all:2")
    rules = mtf.convert_to_layout_rules("batch:all")
    implementation = mtf.placement_mesh_impl.PlacementMeshImpl(shape, rules, ["", ""])
    lowering = mtf.Lowering(graph, {mesh: implementation})
    restore = mtf.MtfRestoreHook(lowering)
    if mode == "infer":
        predictions = {"classes": tf.argmax(lowering.export_to_tf_tensor(logits), 1)}
        exports = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions, prediction_hooks=[restore], export_outputs=exports)
    tf_loss = lowering.export_to_tf_tensor(loss)
    if mode == "eval":
        accuracy = v1.metrics.accuracy(labels, tf.argmax(lowering.export_to_tf_tensor(logits), 1))
        return tf.estimator.EstimatorSpec(
            mode, loss=tf_loss, evaluation_hooks=[restore], eval_metric_ops={"accuracy": accuracy}
        )
    operations = [lowering.lowered_operation(update) for update in updates] + [v1.assign_add(step, 1)]
    train_op = tf.group(operations)
    with mtf.utils.outside_all_rewrites():
        saver = v1.train.Saver(
            v1.global_variables(), sharded=True, max_to_keep=10, defer_build=False, save_relative_paths=True
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        listener = mtf.MtfCheckpointSaverListener(lowering)
        save = v1.train.CheckpointSaverHook(MODEL_DIR, save_steps=4, saver=saver, listeners=[listener])
    return tf.estimator.EstimatorSpec(mode, loss=tf_loss, train_op=train_op, training_chief_hooks=[restore, save])


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, max_steps=8)
evaluate_predict_export(estimator, batches, serving)
