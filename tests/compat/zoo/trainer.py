"""Optimizers, loss scales, gradient accumulation and schedules on the TensorFlow 1 optimizer classes."""

import re

import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import Summary
from tensorflow.python.distribute import reduce_util
from tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer import LossScaleOptimizer
from tensorflow.python.ops import state_ops
from tensorflow.python.training import optimizer as optimizer_module
from tensorflow.python.training.basic_session_run_hooks import LoggingTensorHook, SecondOrStepTimer
from tensorflow.python.training.experimental.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer
from tensorflow.python.training.session_run_hook import SessionRunArgs, SessionRunHook
from tensorflow.python.training.summary_io import SummaryWriterCache
from tensorflow.python.util import nest

try:
    from cerebras.tf.tf_helper import summary_layer
except Exception:

    def summary_layer(x):
        return x


class AdamWOptimizer(tf.compat.v1.train.Optimizer):
    """Adam with decoupled weight decay; its slots are variables named <variable>/AdamW and <variable>/AdamW_1."""

    def __init__(self, learning_rate, weight_decay_rate=0.0, beta1=0.9, beta2=0.999, epsilon=1e-6, exclude=None):
        super().__init__(False, "AdamW")
        self._rate, self._decay = learning_rate, weight_decay_rate
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._exclude = exclude or []

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "m", self._name)
            self._zeros_slot(variable, "v", self._name)

    def _prepare(self):
        rate = self._rate() if callable(self._rate) else self._rate
        self._rate_tensor = tf.convert_to_tensor(rate, name="learning_rate")

    def _resource_apply_dense(self, grad, var):
        return self._update(grad, var)

    def _apply_dense(self, grad, var):
        return self._update(grad, var)

    def _resource_apply_sparse(self, grad, var, indices):
        dense = tf.IndexedSlices(grad, indices, var.shape)
        return self._update(tf.convert_to_tensor(dense), var)

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices):
        return self._resource_apply_sparse(grad, handle, indices)

    def _update(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        next_m = self._beta1 * m + (1.0 - self._beta1) * grad
        next_v = self._beta2 * v + (1.0 - self._beta2) * tf.square(grad)
        update = next_m / (tf.sqrt(next_v) + self._epsilon)
        if self._decay and not any(re.search(part, var.name) for part in self._exclude):
            update += self._decay * var
        assigned = [
            state_ops.assign(var, var - tf.cast(self._rate_tensor, var.dtype.base_dtype) * update),
            state_ops.assign(m, next_m),
            state_ops.assign(v, next_v),
        ]
        return tf.group(*assigned)


class CSDynamicLossScale(tf.compat.v1.train.experimental.DynamicLossScale):
    """Halves on overflow, doubles after a number of good steps, within bounds."""

    def __init__(self, initial_loss_scale=2.0**15, increment_period=2000, min_scale=2.0**-14, max_scale=2.0**15):
        super().__init__(initial_loss_scale=initial_loss_scale, increment_period=increment_period, multiplier=2.0)
        self._min_scale, self._max_scale = min_scale, max_scale
        self._overflows = self._add_weight(name="overflows_since_rescale", dtype=tf.int64, initial_value=0)
        self._since = self._add_weight(name="steps_since_rescale", dtype=tf.int64, initial_value=0)

    def update(self, grads):
        flat = [g for g in nest.flatten(grads) if g is not None]
        norm = tf.linalg.global_norm(flat)
        is_finite = tf.math.is_finite(norm)

        def good():
            ripe = self._since + 1 >= self.increment_period
            raised = tf.clip_by_value(self._current_loss_scale * self.multiplier, self._min_scale, self._max_scale)
            return tf.group(
                self._current_loss_scale.assign(tf.where(ripe, raised, self._current_loss_scale)),
                self._since.assign(tf.where(ripe, tf.zeros([], tf.int64), self._since + 1)),
            )

        def bad():
            lowered = tf.clip_by_value(self._current_loss_scale / self.multiplier, self._min_scale, self._max_scale)
            return tf.group(
                self._current_loss_scale.assign(lowered),
                self._since.assign(tf.zeros([], tf.int64)),
                self._overflows.assign_add(1),
            )

        return tf.cond(is_finite, good, bad), is_finite

    def get_config(self):
        return {"initial_loss_scale": self.initial_loss_scale, "increment_period": self.increment_period}


class ScaledOptimizer(MixedPrecisionLossScaleOptimizer):
    """Reads the private members that the model codes read."""

    @property
    def loss_scale_tensor(self):
        return self._loss_scale()

    @property
    def inner(self):
        return self._optimizer


class GradAccumOptimizer(tf.compat.v1.train.Optimizer):
    """Adds up the gradients of a number of steps, then applies them; the global step counts applications."""

    def __init__(self, optimizer, steps):
        super().__init__(False, "GradAccum")
        self._optimizer, self._steps = optimizer, steps
        self._counter = tf.compat.v1.get_variable(
            "accum_step_counter",
            shape=[],
            dtype=tf.int32,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=False,
        )

    @property
    def is_last(self):
        return tf.equal(self._counter % self._steps, self._steps - 1)

    def compute_gradients(self, loss, var_list=None, **kwargs):
        return self._optimizer.compute_gradients(loss, var_list, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        if tf.distribute.has_strategy() and tf.distribute.get_replica_context() is None:
            raise RuntimeError(reduce_util.ReduceOp.SUM)
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        sums = []
        for number, (gradient, variable) in enumerate(pairs):
            assert optimizer_module._get_processor(variable) is not None
            gradient = tf.convert_to_tensor(gradient)
            kept = tf.compat.v1.get_variable(
                f"{variable.op.name}_grad_accum_{number}",
                shape=variable.shape,
                dtype=gradient.dtype,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
            )
            sums.append((kept, gradient, variable))
        is_last = self.is_last

        def apply():
            with_sum = [(kept + gradient, variable) for kept, gradient, variable in sums]
            done = self._optimizer.apply_gradients(with_sum, global_step=global_step)
            with tf.control_dependencies([done]):
                return tf.group(*[kept.assign(tf.zeros_like(kept)) for kept, _, _ in sums])

        def add():
            return tf.group(*[kept.assign_add(gradient) for kept, gradient, _ in sums])

        step = tf.cond(is_last, apply, add)
        with tf.control_dependencies([step]):
            return self._counter.assign_add(1, name=name, read_value=False)


class GradAccumLoggingHook(SessionRunHook):
    """Logs the mean of the loss over the accumulated steps."""

    def __init__(self, tensors, every_n_iter, is_last, model_dir):
        self._tensors, self._is_last, self._dir = tensors, is_last, model_dir
        self._timer = SecondOrStepTimer(every_steps=every_n_iter)
        self._sums, self._count = {}, 0

    def begin(self):
        self._global_step = tf.compat.v1.train.get_global_step()
        self._writer = SummaryWriterCache.get(self._dir)

    def before_run(self, run_context):
        return SessionRunArgs({"tensors": self._tensors, "is_last": self._is_last, "step": self._global_step})

    def after_run(self, run_context, run_values):
        values = run_values.results
        self._count += 1
        for name, value in values["tensors"].items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)
        if not values["is_last"]:
            return
        step = int(run_context.session.run(self._global_step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            means = {name: total / self._count for name, total in self._sums.items()}
            tf.compat.v1.logging.info("%s, step = %d", ", ".join(f"{k} = {v}" for k, v in means.items()), step)
            summary = Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in means.items()])
            self._writer.add_summary(summary, step)
        self._sums, self._count = {}, 0


class Trainer:
    def __init__(self, params, mixed_precision):
        self.params = params
        self.mixed_precision = mixed_precision
        self.steps = params.get("grad_accum_steps", 1)
        self.scale = params.get("loss_scaling_factor", 1.0)
        self.accumulating = None

    def is_grad_accum(self):
        return self.steps > 1

    def rate(self):
        step = tf.compat.v1.train.get_or_create_global_step()
        given = self.params["learning_rate"]
        if not isinstance(given, (list, tuple, dict)):
            return tf.constant(float(given))
        given = [given] if isinstance(given, dict) else given
        cases, begin = [], 0
        for one in given:
            end = begin + int(one.get("steps", one.get("decay_steps", 1)))
            cases.append((tf.logical_and(step >= begin, step < end), self.schedule(one, step - begin)))
            begin = end
        default = cases[-1][1]
        return tf.case(cases, default=default, exclusive=False)

    def schedule(self, one, step):
        kind, v1 = one["scheduler"], tf.compat.v1.train

        def value():
            if kind == "Constant":
                return tf.constant(float(one["learning_rate"]))
            if kind == "Exponential":
                return v1.exponential_decay(float(one["initial_learning_rate"]), step, one["decay_steps"], 0.5)
            if kind == "Cosine":
                return v1.cosine_decay(float(one["initial_learning_rate"]), step, one["decay_steps"])
            if kind == "PiecewiseConstant":
                return v1.piecewise_constant(
                    step, [int(x) for x in one["boundaries"]], [float(x) for x in one["values"]]
                )
            return v1.polynomial_decay(
                float(one["initial_learning_rate"]), step, one["steps"], float(one["end_learning_rate"]), power=1.0
            )

        return value

    def build(self, loss):
        kind = self.params["optimizer_type"].lower()
        rate = self.rate()
        tf.compat.v1.summary.scalar("train/lr", rate)
        v1 = tf.compat.v1.train
        epsilon = 1e-5 if self.mixed_precision else 1e-8
        optimizer = {
            "sgd": lambda: v1.GradientDescentOptimizer(learning_rate=rate, name="sgd"),
            "momentum": lambda: v1.MomentumOptimizer(learning_rate=rate, momentum=0.9, name="momentum"),
            "adam": lambda: v1.AdamOptimizer(learning_rate=rate, beta1=0.9, beta2=0.999, epsilon=epsilon),
            "rmsprop": lambda: v1.RMSPropOptimizer(learning_rate=rate, name="rmsprop"),
            "adamw": lambda: AdamWOptimizer(
                rate, self.params.get("weight_decay_rate", 0.0), epsilon=epsilon, exclude=["LayerNorm", "bias", "gamma"]
            ),
        }[kind]()
        if self.scale == "dynamic":
            optimizer = ScaledOptimizer(optimizer, CSDynamicLossScale(2.0**8, 2))
        elif self.scale == "tf_dynamic":
            optimizer = ScaledOptimizer(optimizer, v1.experimental.DynamicLossScale(2.0**8, 2))
        elif self.scale != 1.0:
            optimizer = ScaledOptimizer(optimizer, v1.experimental.FixedLossScale(self.scale))
        if isinstance(optimizer, ScaledOptimizer):
            tf.compat.v1.summary.scalar("train/loss_scale", optimizer.loss_scale_tensor)
        if self.is_grad_accum():
            optimizer = self.accumulating = GradAccumOptimizer(optimizer, self.steps)
        pairs = optimizer.compute_gradients(loss, tf.compat.v1.trainable_variables())
        pairs = [(g, v) for g, v in pairs if g is not None]
        gradients, variables = zip(*pairs, strict=True)
        if self.params.get("max_gradient_norm"):
            gradients, norm = tf.clip_by_global_norm(list(gradients), self.params["max_gradient_norm"])
            tf.compat.v1.summary.scalar("train/unclipped_grad_norm", norm)
        elif self.params.get("max_gradient_value"):
            limit = self.params["max_gradient_value"]
            gradients = [tf.clip_by_value(g, -limit, limit) for g in gradients]
        if self.params.get("log_hists"):
            for gradient, variable in zip(gradients, variables, strict=True):
                tf.compat.v1.summary.histogram(variable.op.name, gradient)
        if self.params.get("ws_summary"):
            for gradient in gradients:
                summary_layer(gradient)
        pairs = zip(gradients, variables, strict=True)
        return optimizer.apply_gradients(pairs, tf.compat.v1.train.get_or_create_global_step())

    def hooks(self, loss, runconfig):
        if not self.is_grad_accum():
            return []
        directory = runconfig["model_dir"]
        return [
            GradAccumLoggingHook({"loss": loss}, 1, self.accumulating.is_last, directory),
            LoggingTensorHook({"accumulated": self.accumulating._counter}, every_n_iter=100),
        ]
