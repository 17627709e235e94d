"""Adafactor (Shazeer and Stern, arXiv 1804.04235, Algorithms 4 and 5), for resource variables; gradients must be dense.

For a matrix it keeps only the row and column means of the second moment, in `<variable>/Adafactor` and
`<variable>/Adafactor_1`. For any other shape it keeps the whole second moment, in `<variable>/Adafactor`. There is no
first moment.
The learning rate is relative: it is multiplied by the root mean square of the variable.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_SQUARE_EPSILON = 1e-30  # added to squared gradients
_SMALLEST_SCALE = 1e-3  # least value of a variable's root mean square
_CLIPPING_THRESHOLD = 1.0  # of the change's root mean square
_DECAY_EXPONENT = 0.8  # the moment's decay at step t is 1 - t ** -0.8


class AdafactorOptimizer(tf.compat.v1.train.Optimizer):
    """A tf.compat.v1 optimizer.

    Args:
        learning_rate: Relative to each variable's root mean square.
        global_step: () integer, steps finished so far.
        name: Name of the slots.
    """

    def __init__(self, learning_rate: Any, global_step: tf.Variable, name: str = "Adafactor") -> None:
        super().__init__(use_locking=False, name=name)
        self._learning_rate = learning_rate
        self._global_step = global_step

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        for variable in var_list:
            shape = variable.shape
            if len(shape) == 2:
                zeros = tf.compat.v1.zeros_initializer()
                self._get_or_make_slot_with_initializer(variable, zeros, shape[:1], tf.float32, "rows", self._name)
                self._get_or_make_slot_with_initializer(variable, zeros, shape[1:], tf.float32, "columns", self._name)
            else:
                self._zeros_slot(variable, "v", self._name)

    def _prepare(self) -> None:
        self._step_size = tf.convert_to_tensor(self._learning_rate, tf.float32)
        step = tf.cast(self._global_step, tf.float32) + 1.0
        self._decay = 1.0 - tf.pow(step, -_DECAY_EXPONENT)

    def _resource_apply_dense(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Operation:
        square = tf.square(gradient) + _SQUARE_EPSILON
        if len(variable.shape) == 2:
            row_slot, column_slot = self.get_slot(variable, "rows"), self.get_slot(variable, "columns")
            rows = self._decayed(row_slot, tf.reduce_mean(square, axis=1))
            columns = self._decayed(column_slot, tf.reduce_mean(square, axis=0))
            # One factor at a time: the product of two small means underflows to zero in float32.
            change = gradient * tf.math.rsqrt(rows / tf.reduce_mean(rows))[:, None] * tf.math.rsqrt(columns)[None, :]
            updates = [row_slot.assign(rows, read_value=False), column_slot.assign(columns, read_value=False)]
        else:
            slot = self.get_slot(variable, "v")
            second_moment = self._decayed(slot, square)
            change = gradient * tf.math.rsqrt(second_moment)
            updates = [slot.assign(second_moment, read_value=False)]
        change /= tf.maximum(1.0, _root_mean_square(change) / _CLIPPING_THRESHOLD)
        scale = tf.maximum(_SMALLEST_SCALE, _root_mean_square(variable))
        updates.append(variable.assign_sub(self._step_size * scale * change, read_value=False))
        return tf.group(*updates)

    def _resource_apply_sparse(self, gradient: tf.Tensor, variable: tf.Variable, indices: tf.Tensor) -> tf.Operation:
        rows = tf.shape(variable, out_type=indices.dtype)[0]
        return self._resource_apply_dense(tf.math.unsorted_segment_sum(gradient, indices, rows), variable)

    def _decayed(self, slot: tf.Variable, value: tf.Tensor) -> tf.Tensor:
        return self._decay * slot + (1.0 - self._decay) * value


def _root_mean_square(x: Any) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))
