"""Small models with the shapes, losses and metrics of the public model codes, one class each."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Conv2D, Conv2DTranspose, LeakyReLU, MaxPool2D
from tensorflow.python.keras.layers import Flatten, concatenate

from tests.compat.zoo.layers import (
    AddLayer,
    AttentionLayer,
    BaseLayer,
    CrossEntropyFromLogitsLayer,
    DenseLayer,
    DropoutLayer,
    EmbeddingLayer,
    FeedForwardNetwork,
    LayerNormalizationLayer,
    PositionEmbeddingLayer,
    SharedWeightsDenseLayer,
    initializer_of,
)
from tests.compat.zoo.trainer import Trainer

MODES = tf.estimator.ModeKeys


class BaseModel:
    """Sets the policy from params and calls what a subclass builds."""

    def __init__(self, params):
        self.params = params
        model = params["model"]
        self.mixed = model.get("mixed_precision", False)
        tf.keras.backend.set_floatx("float16" if self.mixed and model.get("half_floatx") else "float32")
        name = "mixed_float16" if self.mixed else tf.keras.backend.floatx()
        self.policy = tf.keras.mixed_precision.experimental.Policy(name, loss_scale=None)
        tf.keras.mixed_precision.experimental.set_policy(self.policy)
        self.trainer = Trainer(params["optimizer"], self.mixed)
        self.flags = {
            "boundary_casting": model.get("boundary_casting", False),
            "tf_summary": model.get("tf_summary", False),
        }
        self.options = {"dtype": self.policy, **self.flags}
        self.width = model.get("hidden_size", 32)
        self.num_heads = model.get("num_heads", 2)
        self.filter = model.get("filter_size", 64)
        self.num_layers = model.get("num_hidden_layers", 2)
        self.dropout = model.get("dropout_rate", 0.1)
        self.initializer = initializer_of(model.get("initializer", {"name": "truncated_normal", "stddev": 0.02}))

    def __call__(self, features, mode):
        self.outputs = self.build_model(features, mode)
        return self.outputs

    def build_train_ops(self, loss):
        return self.trainer.build(loss)

    def residual(self, x, y):
        return AddLayer(**self.options)([x, y])

    def norm(self, x, name=None):
        return LayerNormalizationLayer(epsilon=1e-5, name=name, **self.options)(x)

    def attention(self, q, v, name, mask=None, training=True, **kwargs):
        layer = AttentionLayer(
            self.width, self.num_heads, self.initializer, dropout_rate=self.dropout, name=name, **kwargs, **self.options
        )
        return layer, lambda q, v, bias=None: layer(q, v, mask=mask, position_bias=bias, training=training)

    def attend(self, q, v, name, mask=None, training=True, bias=None, **kwargs):
        _, call = self.attention(q, v, name, mask, training, **kwargs)
        return call(q, v, bias)

    def feed_forward(self, x, name, training=True):
        layer = FeedForwardNetwork(
            self.filter, self.width, "gelu", self.initializer, self.dropout, name=name, **self.options
        )
        return layer(x, training=training)

    def token_loss(self, logits, labels, weights):
        loss = CrossEntropyFromLogitsLayer(dtype=self.policy)(labels, logits)
        loss = tf.cast(loss, tf.float32) * tf.cast(weights, tf.float32)
        return tf.reduce_sum(loss) / tf.cast(tf.shape(labels)[0], tf.float32)


def causal_mask(length):
    return tf.constant((1.0 - np.tril(np.ones([length, length], np.float32)))[None, None] * -1e4)


def padding_mask(mask):
    return (1.0 - tf.cast(mask, tf.float32))[:, None, None, :] * -1e4


def numbered(name, i):
    return name if i == 0 else f"{name}_{i}"


class FullyConnected(BaseModel):
    """fc_mnist: plain Keras layers under a floating policy, no trainer."""

    def build_model(self, features, mode):
        inputs = tf.reshape(tf.cast(features, tf.float16), [-1, 28 * 28])
        policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16", loss_scale=None)
        tf.keras.mixed_precision.experimental.set_policy(policy)
        net = inputs
        for size in (50, 30):
            with tf.name_scope("km_disable_scope"):
                net = tf.keras.layers.Dense(size, activation=None, use_bias=True)(net)
            net = tf.nn.relu(net)
        with tf.name_scope("km_disable_scope"):
            logits = tf.keras.layers.Dense(10)(net)
        tf.keras.mixed_precision.experimental.set_policy("float32")
        return logits

    def loss(self, logits, features, labels, mode):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
        return tf.reduce_mean(input_tensor=losses)

    def build_train_ops(self, loss):
        optimizer = tf.compat.v1.train.AdamOptimizer(learning_rate=0.001, epsilon=0.001)
        return optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())

    def host_call(self, logits, features, labels):
        def metric_fn(labels, predictions):
            return {"accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=predictions)}

        return metric_fn, [labels, tf.argmax(input=logits, axis=1)]


class GPT2(BaseModel):
    def build_model(self, features, mode):
        model, training = self.params["model"], mode == MODES.TRAIN
        self.embedding = EmbeddingLayer(
            model["vocab_size"],
            self.width,
            embeddings_initializer=self.initializer,
            name="input_embedding",
            **self.options,
        )
        net = self.embedding(features["input_ids"])
        position = PositionEmbeddingLayer(
            model["max_position_embeddings"], self.initializer, name="position_embedding", **self.options
        )
        net = DropoutLayer(self.dropout, seed=None, **self.options)(position(net), training=training)
        mask = causal_mask(net.get_shape().as_list()[1])
        with tf.name_scope("decoder"):
            for i in range(self.num_layers):
                normed = self.norm(net)
                net = self.residual(
                    net, self.attend(normed, normed, numbered("self_attention", i), mask, training, **self.extra())
                )
                net = self.residual(net, self.feed_forward(self.norm(net), numbered("ffn", i), training))
        net = self.norm(net, "post_decoder_layer_norm")
        head = SharedWeightsDenseLayer(model["vocab_size"], use_bias=False, name="lm_output_layer", **self.options)
        return head(net, self.embedding.embedding_table())

    def extra(self):
        return {}

    def loss(self, logits, features, labels, mode):
        loss = self.token_loss(logits, labels, features["input_mask"]) * self.params["model"].get("loss_weight", 0.1)
        tf.compat.v1.summary.scalar("train/cost", loss)
        return loss

    def eval_metric_ops(self, logits, features, labels):
        predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
        weights = tf.cast(features["input_mask"], tf.float32)
        entropy = CrossEntropyFromLogitsLayer(dtype=self.policy)(labels, logits)
        total, update = tf.compat.v1.metrics.mean(tf.cast(entropy, tf.float32), weights=weights)
        return {
            "eval/accuracy": tf.compat.v1.metrics.accuracy(labels, predictions, weights=weights),
            "eval/lm_perplexity": perplexity(entropy, weights),
            "eval/bits_per_byte": (total / np.log(2.0), update),
        }

    def host_call(self, logits, features, labels):
        predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
        entropy = CrossEntropyFromLogitsLayer(dtype=self.policy)(labels, logits)

        def metric_fn(outputs, labels, features):
            predictions, entropy = outputs
            weights = tf.cast(features["input_mask"], tf.float32)
            return {
                "eval/accuracy": tf.compat.v1.metrics.accuracy(labels, predictions, weights=weights),
                "eval/lm_perplexity": perplexity(entropy, weights),
            }

        return metric_fn, [(predictions, entropy), labels, features]


def perplexity(losses, weights):
    """A streaming metric on variables of its own, in the collections of metrics."""
    with tf.compat.v1.variable_scope(None, "perplexity"):
        collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES, tf.compat.v1.GraphKeys.METRIC_VARIABLES]

        def variable(name):
            return tf.compat.v1.Variable(
                lambda: tf.zeros([], tf.float32),
                trainable=False,
                collections=collections,
                validate_shape=True,
                name=name,
            )

        total, count = variable("total"), variable("count")
        weights = tf.cast(weights, tf.float32)
        update_total = tf.compat.v1.assign_add(total, tf.reduce_sum(tf.cast(losses, tf.float32) * weights))
        update_count = tf.compat.v1.assign_add(count, tf.reduce_sum(weights))
        value = tf.exp(tf.math.divide_no_nan(total, count))
        update = tf.exp(tf.math.divide_no_nan(update_total, update_count))
        return value, update


class GPTJ(GPT2):
    """Attention and feed-forward in parallel, rotary positions, an untied head with a bias."""

    def build_model(self, features, mode):
        model, training = self.params["model"], mode == MODES.TRAIN
        table = EmbeddingLayer(
            model["vocab_size"], self.width, self.initializer, name="input_embedding", **self.options
        )
        net = table(features["input_ids"])
        mask = causal_mask(net.get_shape().as_list()[1])
        for i in range(self.num_layers):
            with tf.name_scope(f"gptj_decoder/{i}/"):
                normed = self.norm(net, "ln_1")
                attended = self.attend(normed, normed, "attn", mask, training, rotary_dim=4, use_bias=False)
                fed = self.feed_forward(normed, "mlp", training)
                net = AddLayer(**self.options)([net, attended, fed])
        net = self.norm(net, "post_decoder_layer_norm")
        head = DenseLayer(model["vocab_size"], kernel_initializer=self.initializer, name="lm_head", **self.options)
        return head(net)


class BERT(BaseModel):
    """Masked language model and next sentence; the loss factor depends on the execution mode."""

    def encode(self, features, mode, **kwargs):
        model, training = self.params["model"], mode == MODES.TRAIN
        self.embedding = EmbeddingLayer(
            model["vocab_size"], self.width, self.initializer, name="input_embedding", **self.options
        )
        net = self.embedding(features["input_ids"])
        segment = EmbeddingLayer(2, self.width, self.initializer, name="segment_embedding", **self.options)
        position = PositionEmbeddingLayer(
            model["max_position_embeddings"], self.initializer, name="position_embedding", **self.options
        )
        net = self.norm(position(net) + segment(features["segment_ids"]), "pre_encoder_layer_norm")
        mask = None if kwargs else padding_mask(features["input_mask"])
        with tf.name_scope("encoder"):
            for i in range(self.num_layers):
                name = numbered("linformer_self_attention" if kwargs else "self_attention", i)
                net = self.norm(self.residual(net, self.attend(net, net, name, mask, training, **kwargs)))
                net = self.norm(self.residual(net, self.feed_forward(net, numbered("ffn", i), training)))
        return net

    def build_model(self, features, mode):
        net = self.encode(features, mode)
        with tf.name_scope("cls_layer"):
            pooled = DenseLayer(
                self.width, "tanh", kernel_initializer=self.initializer, name="cls_dense", **self.options
            )(net[:, 0])
            nsp = DenseLayer(2, kernel_initializer=self.initializer, name="cls_output_dense", **self.options)(pooled)
        return {"mlm": self.masked_logits(net, features), "nsp": nsp}

    def masked_logits(self, net, features):
        model = self.params["model"]
        picked = tf.gather(net, tf.cast(features["masked_lm_positions"], tf.int32), batch_dims=1)
        with tf.name_scope("mlm_layer"):
            picked = DenseLayer(
                self.width, "gelu", kernel_initializer=self.initializer, name="mlm_ffn", **self.options
            )(picked)
            picked = self.norm(picked, "mlm_layer_norm")
        head = SharedWeightsDenseLayer(model["vocab_size"], use_bias=True, name="mlm_layer", **self.options)
        return head(picked, self.embedding.embedding_table())

    def loss(self, outputs, features, labels, mode):
        from tests.compat.zoo.run_utils import get_execution_mode

        scale = 1.0 if get_execution_mode() else 0.5
        loss = self.token_loss(outputs["mlm"], features["masked_lm_ids"], features["masked_lm_weights"]) * scale
        if "nsp" in outputs:
            labels = tf.reshape(features["next_sentence_labels"], [-1])
            nsp = CrossEntropyFromLogitsLayer(dtype=self.policy)(labels, outputs["nsp"])
            loss += tf.cast(tf.reduce_mean(nsp), tf.float32)
        tf.compat.v1.summary.scalar("train/cost_masked_lm", loss)
        return loss

    def host_call(self, outputs, features, labels):
        predictions = tf.argmax(outputs["mlm"], axis=-1, output_type=tf.int32)
        entropy = CrossEntropyFromLogitsLayer(dtype=self.policy)(features["masked_lm_ids"], outputs["mlm"])
        nsp = tf.argmax(outputs["nsp"], axis=-1, output_type=tf.int32) if "nsp" in outputs else None
        kept = {
            key: features[key]
            for key in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
            if key in features
        }

        def metric_fn(outputs, features):
            predictions, entropy, nsp = outputs
            ids, weights = features["masked_lm_ids"], features["masked_lm_weights"]
            metrics = {
                "eval/accuracy_masked_lm": tf.compat.v1.metrics.accuracy(ids, predictions, weights=weights),
                "eval/mlm_perplexity": perplexity(entropy, weights),
            }
            if nsp is not None:
                truth = tf.reshape(features["next_sentence_labels"], [-1])
                metrics["eval/accuracy_cls"] = tf.compat.v1.metrics.accuracy(truth, nsp)
            return metrics

        return metric_fn, ((predictions, entropy, nsp), kept)


class Linformer(BERT):
    def build_model(self, features, mode):
        return {"mlm": self.masked_logits(self.encode(features, mode, projected=4), features)}


class Classifier(BERT):
    """A head on the first token; predictions are a dict."""

    def build_model(self, features, mode):
        net = self.encode(features, mode)
        with tf.name_scope("cls_layer"):
            dense = DenseLayer(
                self.width, "tanh", kernel_initializer=self.initializer, name="cls_dense", **self.options
            )
            pooled = dense(net[:, 0])
        return DenseLayer(3, kernel_initializer=self.initializer, name="output_logits", **self.options)(pooled)

    def loss(self, logits, features, labels, mode):
        return tf.reduce_mean(tf.cast(CrossEntropyFromLogitsLayer(dtype=self.policy)(labels, logits), tf.float32))

    def predictions(self, logits, features):
        return {"logits": logits, "classes": tf.argmax(logits, axis=-1)}

    def host_call(self, logits, features, labels):
        def metric_fn(preds, labels):
            return {
                "eval/accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=preds),
                "eval/per_class": tf.compat.v1.metrics.mean_per_class_accuracy(labels, preds, 3),
                "eval/not_a_metric": preds,
            }

        return metric_fn, [tf.argmax(logits, axis=-1, output_type=tf.int32), labels]


class TokenClassifier(Classifier):
    """A head on each token; predictions are a tensor."""

    def build_model(self, features, mode):
        net = self.encode(features, mode)
        return DenseLayer(3, kernel_initializer=self.initializer, name="output_logits", **self.options)(net)

    def loss(self, logits, features, labels, mode):
        return self.token_loss(logits, features["label_ids"], features["input_mask"])

    def predictions(self, logits, features):
        return tf.argmax(logits, axis=-1, output_type=tf.int32)

    def host_call(self, logits, features, labels):
        def names_of(values):
            return np.array(["ABC"[value] for value in values.reshape(-1)]).astype("S1")

        def metric_fn(preds, truth):
            text = tf.numpy_function(names_of, [preds], tf.string)
            same = tf.cast(tf.strings.length(text) > 0, tf.float32)
            return {
                "eval/labelled": tf.compat.v1.metrics.mean(same),
                "eval/iou": tf.compat.v1.metrics.mean_iou(truth, preds, 3),
            }

        return metric_fn, [tf.argmax(logits, axis=-1, output_type=tf.int32), features["label_ids"]]


class QuestionAnswering(Classifier):
    """Start and end logits; host_call returns nothing."""

    def build_model(self, features, mode):
        net = self.encode(features, mode)
        logits = DenseLayer(2, kernel_initializer=self.initializer, name="qa_logits", **self.options)(net)
        return tf.unstack(tf.transpose(logits, [2, 0, 1]), axis=0)

    def loss(self, logits, features, labels, mode):
        parts = []
        for one, name in zip(logits, ("start_positions", "end_positions"), strict=True):
            position = tf.reshape(features[name], [-1])
            wanted = tf.one_hot(position, depth=one.get_shape().as_list()[1], dtype=tf.float32)
            parts.append(-tf.reduce_mean(tf.reduce_sum(wanted * tf.nn.log_softmax(tf.cast(one, tf.float32)), axis=-1)))
        return sum(parts) / 2.0

    def predictions(self, logits, features):
        return {"unique_ids": features["unique_ids"], "start_logits": logits[0], "end_logits": logits[1]}

    def host_call(self, logits, features, labels):
        return (lambda *_: {}), [logits[0]]


class T5(BaseModel):
    """Encoder and decoder, relative positions, tied embedding."""

    has_positions = False

    def build_model(self, features, mode):
        model, training = self.params["model"], mode == MODES.TRAIN
        table = EmbeddingLayer(
            model["vocab_size"], self.width, self.initializer, name="encoder_embedding", **self.options
        )
        source, target = table(features["encoder_input_ids"]), table(features["decoder_input_ids"])
        if self.has_positions:
            for_source = PositionEmbeddingLayer(64, is_fixed=True, name="encoder_position_encoding", **self.options)
            for_target = PositionEmbeddingLayer(64, is_fixed=True, name="decoder_position_encoding", **self.options)
            source, target = for_source(source), for_target(target)
        padding = padding_mask(features["encoder_mask"])
        with tf.name_scope("encoder"):
            bias = self.relative_bias(source, "encoder_bias")
            for i in range(self.num_layers):
                normed = self.norm(source)
                source = self.residual(
                    source, self.attend(normed, normed, numbered("self_attention", i), padding, training, bias)
                )
                source = self.residual(source, self.feed_forward(self.norm(source), numbered("ffn", i), training))
        with tf.name_scope("decoder"):
            mask = causal_mask(target.get_shape().as_list()[1])
            bias = self.relative_bias(target, "decoder_bias")
            for i in range(self.num_layers):
                normed = self.norm(target)
                target = self.residual(
                    target, self.attend(normed, normed, numbered("dec_attention", i), mask, training, bias)
                )
                cross = numbered("encoder_decoder_attention", i)
                target = self.residual(target, self.attend(self.norm(target), source, cross, padding, training))
                target = self.residual(target, self.feed_forward(self.norm(target), numbered("dec_ffn", i), training))
        head = SharedWeightsDenseLayer(model["vocab_size"], use_bias=self.has_positions, name="lm_head", **self.options)
        return head(target, table.embedding_table())

    def relative_bias(self, x, name):
        length = x.get_shape().as_list()[1]
        distance = np.abs(np.arange(length)[:, None] - np.arange(length)[None, :])
        table = EmbeddingLayer(32, self.num_heads, self.initializer, name=name, **self.options)
        return tf.transpose(table(tf.constant(distance.clip(0, 31), tf.int32)), [2, 0, 1])[None]

    def loss(self, logits, features, labels, mode):
        return self.token_loss(logits, labels, features["decoder_mask"])

    def host_call(self, logits, features, labels):
        entropy = CrossEntropyFromLogitsLayer(dtype=self.policy)(labels, logits)
        predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)

        def metric_fn(labels, predictions, entropy, weights):
            weights = tf.cast(weights, tf.float32)
            return {
                "eval/accuracy_lm": tf.compat.v1.metrics.accuracy(labels, predictions, weights=weights),
                "eval/perplexity_lm": perplexity(entropy, weights),
            }

        return metric_fn, [labels, predictions, entropy, features["decoder_mask"]]


class Transformer(T5):
    has_positions = True

    def relative_bias(self, x, name):
        return None


class Conv2DLayer(BaseLayer):
    """Passes the arguments of Keras 2.2's Conv2D by position."""

    def __init__(self, filters, kernel_size, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.layer = Conv2D(
            filters, kernel_size, (1, 1), "same", "channels_first" if False else "channels_last", (1, 1),
            activation, True, "glorot_uniform", "zeros", None, None, None, None, None,
            name=self.name, dtype=self.dtype_policy,
        )  # fmt: skip

    def call(self, inputs, **kwargs):
        return self.finished(self.layer(inputs))


class UNet(BaseModel):
    def build_model(self, features, mode):
        net = tf.cast(features, self.policy.compute_dtype)
        first = LeakyReLU(0.1, dtype=self.policy)(Conv2DLayer(4, 3, dtype=self.policy)(net))
        net = MaxPool2D(pool_size=(2, 2), dtype=self.policy)(first)
        net = Conv2DLayer(8, 3, "relu", dtype=self.policy)(net)
        net = Conv2DTranspose(4, 2, (2, 2), "same", dtype=self.policy)(net)
        net = concatenate([first, net], axis=-1, dtype=self.policy)
        logits = Conv2DLayer(1, 1, dtype=self.policy)(net)
        return Flatten(dtype=self.policy)(logits)

    def loss(self, logits, features, labels, mode):
        wanted = tf.reshape(labels, [-1, logits.get_shape().as_list()[1]])
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(wanted, tf.float32), logits=tf.cast(logits, tf.float32)
        )
        tf.compat.v1.summary.image("input", tf.cast(features, tf.float32), max_outputs=1)
        return tf.reduce_mean(losses)

    def host_call(self, logits, features, labels):
        def metric_fn(labels, logits):
            truth = tf.cast(tf.reshape(labels, [-1]), tf.int32)
            guess = tf.cast(tf.reshape(logits, [-1]) > 0, tf.int32)
            return {
                "eval/mIoU": tf.compat.v1.metrics.mean_iou(truth, guess, 2),
                "eval/MPCA": tf.compat.v1.metrics.mean_per_class_accuracy(truth, guess, 2),
                "eval/Acc": tf.compat.v1.metrics.accuracy(truth, guess),
            }

        return metric_fn, [labels, logits]

    def hooks(self, mode, runconfig):
        if mode != MODES.EVAL:
            return None
        merged = tf.compat.v1.summary.merge_all()
        return [tf.estimator.SummarySaverHook(save_steps=1, output_dir=runconfig["model_dir"], summary_op=merged)]


MODELS = {
    "fc_mnist": FullyConnected,
    "gpt2": GPT2,
    "gptj": GPTJ,
    "bert": BERT,
    "classifier": Classifier,
    "token_classifier": TokenClassifier,
    "qa": QuestionAnswering,
    "linformer": Linformer,
    "t5": T5,
    "transformer": Transformer,
    "unet": UNet,
}


def model_fn_for(spec_class):
    """A model_fn that returns specs of a release's class."""

    def model_fn(features, labels, mode, params):
        name = params["model"]["name"]
        model = MODELS[name](params)
        outputs = model(features, mode)
        if mode == MODES.PREDICT:
            return spec_class(mode=mode, predictions=model.predictions(outputs, features))
        loss = model.loss(outputs, features, labels, mode)
        train_op, host_call, metrics, hooks, evaluation_hooks = None, None, None, [], None
        if mode == MODES.TRAIN:
            train_op = model.build_train_ops(loss)
            hooks = model.trainer.hooks(loss, params["runconfig"])
        else:
            if params["runconfig"].get("metrics") == "eval_metric_ops":
                metrics = model.eval_metric_ops(outputs, features, labels)
            else:
                host_call = model.host_call(outputs, features, labels)
            if hasattr(model, "hooks") and not params["runconfig"].get("on_cs"):
                evaluation_hooks = model.hooks(mode, params["runconfig"])
        return spec_class(
            mode=mode,
            loss=loss,
            train_op=train_op,
            host_call=host_call,
            eval_metric_ops=metrics,
            training_hooks=hooks,
            evaluation_hooks=evaluation_hooks,
        )

    return model_fn
