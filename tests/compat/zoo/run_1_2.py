"""A script in the style of releases 1.2 to 1.5: the container's names, without a layer of wrappers."""

import argparse
import os

import tensorflow as tf
from cerebras.tf.cs_estimator import CerebrasEstimator
from cerebras.tf.cs_estimator_spec import CSEstimatorSpec
from cerebras.tf.run_config import CSRunConfig
from cerebras.tf.summary import cs1_enable_summaries


def model_fn(features, labels, mode, params):
    net = tf.reshape(tf.cast(features, tf.float16), [-1, 784])
    policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16", loss_scale=None)
    tf.keras.mixed_precision.experimental.set_policy(policy)
    for size in params["hidden_sizes"]:
        net = tf.keras.layers.Dense(size, activation=tf.nn.relu)(net)
    logits = tf.cast(tf.keras.layers.Dense(10)(net), tf.float32)
    tf.keras.mixed_precision.experimental.set_policy("float32")
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    train_op = tf.compat.v1.train.AdamOptimizer(0.001).minimize(loss, tf.compat.v1.train.get_global_step())
    tf.compat.v1.summary.scalar("loss_again", loss)

    def metric_fn(labels, logits):
        return (tf.compat.v1.metrics.accuracy(labels=labels, predictions=tf.argmax(logits, axis=1)),)

    host_call = (metric_fn, [labels, logits]) if mode == tf.estimator.ModeKeys.EVAL else None
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op, host_call=host_call)


def input_fn(params):
    x = tf.random.stateless_uniform([32, 28, 28, 1], seed=[0, 1])
    y = tf.random.stateless_uniform([32], seed=[0, 2], maxval=10, dtype=tf.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    if params["mode"] == "train":
        data = data.shuffle(32, seed=1).repeat()
    return data.batch(params["batch_size"], drop_remainder=True).prefetch(tf.data.experimental.AUTOTUNE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cs_ip")
    parser.add_argument("-o", "--model_dir", required=True)
    parser.add_argument("-m", "--mode", default="train")
    parser.add_argument("--max_steps", type=int, default=4)
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--compile_only", action="store_true")
    args = parser.parse_args()
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    params = {"hidden_sizes": [50, 30], "batch_size": 8, "mode": args.mode}
    config = CSRunConfig(cs_ip=args.cs_ip, save_checkpoints_steps=2, keep_checkpoint_max=2, log_step_count_steps=1)
    with cs1_enable_summaries():
        est = CerebrasEstimator(model_fn, model_dir=args.model_dir, config=config, params=params)
        if args.validate_only or args.compile_only:
            est.compile(input_fn, validate_only=args.validate_only)
        elif args.mode == "train":
            est.train(input_fn, max_steps=args.max_steps)
        else:
            print("RESULT", sorted(est.evaluate(input_fn, steps=2)))
    print("DONE", os.path.basename(tf.train.latest_checkpoint(args.model_dir) or "-"))


if __name__ == "__main__":
    main()
