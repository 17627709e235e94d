"""Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2), for resource variables.

Differs from the paper in two ways, as the public Model Zoo does: the learning rate scales the decay, and bias
correction can be turned off. The slots are called `<variable>/AdamW` (first moment) and `<variable>/AdamW_1`.

With a trust ratio it is LAMB (You et al., arXiv 1904.00962, Algorithm 2, in the epsilon-hat form of TensorFlow's
Adam): each variable's change, decay included, is scaled to the variable's norm.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class AdamWOptimizer(tf.compat.v1.train.Optimizer):
    """A tf.compat.v1 optimizer; gradients must be dense."""

    def __init__(
        self,
        learning_rate: Any,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: tuple[str, ...] = (),
        use_bias_correction: bool = True,
        use_trust_ratio: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(use_locking=False, name=name)
        self._learning_rate = learning_rate
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._weight_decay_rate = weight_decay_rate
        self._exclude_from_weight_decay = exclude_from_weight_decay
        self._use_bias_correction = use_bias_correction
        self._use_trust_ratio = use_trust_ratio

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", self._name)
            self._zeros_slot(variable, "v", self._name)
        if self._use_bias_correction:
            first = min(var_list, key=lambda variable: variable.name)
            self._create_non_slot_variable(initial_value=self._beta1, name="beta1_power", colocate_with=first)
            self._create_non_slot_variable(initial_value=self._beta2, name="beta2_power", colocate_with=first)

    def _powers(self) -> tuple[tf.Variable, tf.Variable]:
        # The update may be inside a branch, which is a separate graph. The variables are in the outer graph.
        with tf.init_scope():
            graph = tf.compat.v1.get_default_graph()
        return (
            self._get_non_slot_variable("beta1_power", graph=graph),
            self._get_non_slot_variable("beta2_power", graph=graph),
        )

    def _prepare(self) -> None:
        self._constants: dict[tuple[float, tf.DType], tf.Tensor] = {}  # of the branch that holds the update
        self._step_size = tf.convert_to_tensor(self._learning_rate, tf.float32)
        self._decay = self._step_size * self._weight_decay_rate
        self._moment_step_size = self._step_size
        if self._use_bias_correction:
            beta1_power, beta2_power = (tf.convert_to_tensor(power) for power in self._powers())
            self._moment_step_size = self._step_size * tf.sqrt(1.0 - beta2_power) / (1.0 - beta1_power)

    def _resource_apply_dense(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Operation:
        first_moment, second_moment = self.get_slot(variable, "m"), self.get_slot(variable, "v")

        def constant(value: float) -> tf.Tensor:
            return self._constant(value, variable.dtype.base_dtype)

        m = constant(self._beta1) * first_moment + constant(1.0 - self._beta1) * gradient
        v = constant(self._beta2) * second_moment + constant(1.0 - self._beta2) * tf.square(gradient)
        change = self._moment_step_size * m / (tf.sqrt(v) + constant(self._epsilon))
        if self._is_decayed(variable):
            change += self._decay * variable
        if self._use_trust_ratio:
            change *= self._trust_ratio(variable, change)
        return tf.group(
            first_moment.assign(m, read_value=False),
            second_moment.assign(v, read_value=False),
            variable.assign_sub(change, read_value=False),
        )

    def _constant(self, value: float, dtype: tf.DType) -> tf.Tensor:
        """Return one tensor of a number for all variables: a model has thousands of them."""
        if (value, dtype) not in self._constants:
            self._constants[(value, dtype)] = tf.constant(value, dtype)
        return self._constants[(value, dtype)]

    def _resource_apply_sparse(self, gradient: tf.Tensor, variable: tf.Variable, indices: tf.Tensor) -> tf.Operation:
        rows = tf.shape(variable, out_type=indices.dtype)[0]
        return self._resource_apply_dense(tf.math.unsorted_segment_sum(gradient, indices, rows), variable)

    def _finish(self, update_ops: list[tf.Operation], name_scope: str) -> tf.Operation:
        updates = list(update_ops)
        if self._use_bias_correction:
            beta1_power, beta2_power = self._powers()
            with tf.control_dependencies(update_ops):
                updates.append(beta1_power.assign(beta1_power * self._beta1, read_value=False))
                updates.append(beta2_power.assign(beta2_power * self._beta2, read_value=False))
        return tf.group(*updates, name=name_scope)

    def _trust_ratio(self, variable: tf.Variable, change: tf.Tensor) -> tf.Tensor:
        """() float32: norm of the variable over norm of its change at learning rate 1; 1 if either norm is 0."""
        length, change_length = tf.norm(variable), tf.norm(change)
        is_defined = tf.logical_and(length > 0.0, change_length > 0.0)
        ratio = length * self._step_size / tf.where(is_defined, change_length, 1.0)
        return tf.where(is_defined, ratio, 1.0)

    def _is_decayed(self, variable: tf.Variable) -> bool:
        return self._weight_decay_rate > 0.0 and not any(
            pattern in variable.op.name for pattern in self._exclude_from_weight_decay
        )
