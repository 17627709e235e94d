"""Keras 2 as scripts for TensorFlow 1.15 to 2.2 expect it: restores what tf_keras dropped.

| what these scripts use | what changed |
|---|---|
| tf.keras.mixed_precision.experimental (Policy with loss_scale, set_policy, LossScaleOptimizer) | gone in 2.9 |
| tensorflow.python.keras.mixed_precision.experimental | gone in 2.4 |
| layer.dtype_policy, .compute_dtype, .variable_dtype can be assigned | they became read-only properties |
| Conv2D's positional arguments of 2.2 | `groups` was inserted in 2.3 |
| an unseeded initializer draws new values at each call | since 2.10 each call returns the same values |
| tensorflow.python.keras.layers takes tf.keras's policies | since 2.6 the two are separate copies of Keras |
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from cerebras_tensorflow.compat import finder
from cerebras_tensorflow.config import env
from cerebras_tensorflow.logs import run_log

_LEGACY_LAYERS = ("convolutional", "core", "normalization", "pooling")
"""Keras modules behind tf.layers. TensorFlow's private copies would mix its own layers with those of Keras 2."""


def restore(tensorflow: ModuleType) -> None:
    """Restore all of it in an imported TensorFlow, unless the user has chosen Keras 3."""
    if not env.is_keras_2():
        run_log.info("TF_USE_LEGACY_KERAS is not 1: tf.keras is Keras 3, and scripts written for Keras 2 fail on it.")
        return
    import tf_keras

    _point_to_keras_2(tensorflow)
    _let_dtypes_be_assigned(tf_keras.layers.Layer)
    _let_unseeded_initializers_draw_anew(tf_keras.initializers)
    _accept_positional_groups(tf_keras.layers)
    _add_experimental_mixed_precision(tensorflow, tf_keras)
    finder.FINDER.watch(
        "tensorflow.python.keras.layers", lambda private: _let_private_layers_be(tf_keras.layers, private)
    )
    for name in _LEGACY_LAYERS:
        module = importlib.import_module(f"tf_keras.src.legacy_tf_layers.{name}")
        sys.modules.setdefault(f"tensorflow.python.keras.legacy_tf_layers.{name}", module)


def _point_to_keras_2(tensorflow: Any) -> None:
    """Make `tf.keras` and `from tensorflow.keras...` the same Keras 2, even if TensorFlow is imported already."""
    from tf_keras.api._v2 import keras as api

    folder = os.path.dirname(os.path.dirname(api.__file__))
    tensorflow.__path__[:] = [folder, *(path for path in tensorflow.__path__ if path != folder)]
    for name in [name for name in sys.modules if name == "tensorflow.keras" or name.startswith("tensorflow.keras.")]:
        del sys.modules[name]
    for name, module in list(sys.modules.items()):
        if name == api.__name__ or name.startswith(f"{api.__name__}."):
            sys.modules[name.replace(api.__name__, "tensorflow.keras", 1)] = module
    tensorflow.keras = api
    if not finder.tensorflow_has_estimator():
        sys.modules.pop("tensorflow.keras.estimator", None)  # tf_keras's own, which fails without the old package
        api.estimator = finder.import_table_module("tensorflow.keras.estimator")


def _let_private_layers_be(layers: Any, private: Any) -> None:
    """Replace the layers in tensorflow.python.keras.layers by tf_keras's, so that they take the same policies."""
    for name in dir(layers):
        if not name.startswith("_") and hasattr(private, name) and callable(getattr(layers, name)):
            setattr(private, name, getattr(layers, name))


def let_rnn_loop(backend: Any) -> None:
    """Let layers that run a cell build their loop with control flow v2, in every graph.

    They write every output to the same element of a TensorArray, and control flow v1 refuses the second write.
    """
    original = backend.rnn

    @functools.wraps(original)
    def rnn(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        switch = tf.compat.v1
        if switch.control_flow_v2_enabled():
            return original(*args, **kwargs)
        switch.enable_control_flow_v2()
        try:
            return original(*args, **kwargs)
        finally:
            switch.disable_control_flow_v2()

    backend.rnn = rnn


def _let_dtypes_be_assigned(layer: Any) -> None:
    def assign_policy(self: Any, value: Any) -> None:
        self._set_dtype_policy(value)

    layer.dtype_policy = layer.dtype_policy.setter(assign_policy)
    for name in ("compute_dtype", "variable_dtype"):
        setattr(layer, name, _assignable(getattr(layer, name), f"_assigned_{name}"))


def _assignable(original: property, place: str) -> property:
    def read(self: Any) -> Any:
        return self.__dict__[place] if place in self.__dict__ else original.fget(self)  # type: ignore[misc]

    def write(self: Any, value: Any) -> None:
        self.__dict__[place] = value

    return property(read, write, doc=original.__doc__)


def _let_unseeded_initializers_draw_anew(initializers: Any) -> None:
    """Let an unseeded initializer draw new values at each call. In a graph its seeds are those of TensorFlow 2.2."""
    import tensorflow as tf
    from tf_keras.src.backend import RandomGenerator  # private: the only way to the initializers' generator

    for base in (
        initializers.RandomUniform,
        initializers.RandomNormal,
        initializers.TruncatedNormal,
        initializers.VarianceScaling,
        initializers.Orthogonal,
    ):
        original = base.__call__
        if getattr(original, "draws_anew", False):
            continue

        def call(self: Any, shape: Any, dtype: Any = None, *, _original: Any = original, **kwargs: Any) -> Any:
            if getattr(self, "seed", 0) is None:
                is_graph = not tf.executing_eagerly()
                self._random_generator = RandomGenerator(
                    None, rng_type=RandomGenerator.RNG_LEGACY_STATEFUL if is_graph else RandomGenerator.RNG_STATELESS
                )
                self._used = False
            return _original(self, shape, dtype, **kwargs)

        functools.update_wrapper(call, original)
        call.draws_anew = True  # type: ignore[attr-defined]
        base.__call__ = call


def _accept_positional_groups(layers: Any) -> None:
    """Accept Conv2D's positional arguments in the order of TensorFlow 2.2, which had no `groups`."""
    names = (
        *("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "activation", "use_bias"),
        *("kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer", "activity_regularizer"),
        *("kernel_constraint", "bias_constraint"),
    )
    original = layers.Conv2D.__init__
    if getattr(original, "accepts_old_order", False):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 6 and not isinstance(args[6], int):
            kwargs.update(zip(names, args, strict=False))
            args = ()
        original(self, *args, **kwargs)

    init.accepts_old_order = True  # type: ignore[attr-defined]
    layers.Conv2D.__init__ = init


def _add_experimental_mixed_precision(tensorflow: Any, tf_keras: Any) -> None:
    if hasattr(tf_keras.mixed_precision, "experimental"):
        return
    from tensorflow.python.keras.mixed_precision import loss_scale_optimizer as private
    from tf_keras.api._v2 import keras as api

    class Policy(tf_keras.mixed_precision.Policy):
        """A Policy that takes a loss_scale, as up to TensorFlow 2.3."""

        def __init__(self, name: str, loss_scale: Any = "auto") -> None:
            super().__init__(name)
            if loss_scale == "auto":
                loss_scale = "dynamic" if name == "mixed_float16" else None
            self._loss_scale = _loss_scale(tensorflow, loss_scale)

        @property
        def loss_scale(self) -> Any:
            """The loss scale, or None."""
            return self._loss_scale

        def get_config(self) -> dict[str, Any]:
            """Return the arguments."""
            return {"name": self.name, "loss_scale": self._loss_scale}

    experimental = ModuleType("tensorflow.keras.mixed_precision.experimental")
    experimental.Policy = Policy  # type: ignore[attr-defined]
    experimental.global_policy = tf_keras.mixed_precision.global_policy  # type: ignore[attr-defined]
    experimental.set_policy = tf_keras.mixed_precision.set_global_policy  # type: ignore[attr-defined]
    experimental.get_layer_policy = lambda layer: layer.dtype_policy  # type: ignore[attr-defined]
    experimental.LossScaleOptimizer = private.LossScaleOptimizerV1  # type: ignore[attr-defined]
    for owner in (tf_keras.mixed_precision, api.mixed_precision):
        owner.experimental = experimental
    for name in ("tensorflow.keras", "tf_keras", "tf_keras.api._v2.keras"):
        sys.modules[f"{name}.mixed_precision.experimental"] = experimental

    inner = ModuleType("tensorflow.python.keras.mixed_precision.experimental")
    inner_optimizer = ModuleType(f"{inner.__name__}.loss_scale_optimizer")
    inner_optimizer.LossScaleOptimizer = private.LossScaleOptimizerV1  # type: ignore[attr-defined]
    inner.loss_scale_optimizer = inner_optimizer  # type: ignore[attr-defined]
    inner.__path__ = []
    sys.modules[inner.__name__] = inner
    sys.modules[inner_optimizer.__name__] = inner_optimizer
    sys.modules["tensorflow.python.keras.mixed_precision"].experimental = inner  # type: ignore[attr-defined]

    outer = ModuleType("tensorflow.mixed_precision.experimental")
    scales = tensorflow.compat.v1.train.experimental
    for name in ("DynamicLossScale", "FixedLossScale", "LossScale"):
        setattr(outer, name, getattr(scales, name))
    if not hasattr(tensorflow, "mixed_precision"):
        tensorflow.mixed_precision = ModuleType("tensorflow.mixed_precision")
        sys.modules["tensorflow.mixed_precision"] = tensorflow.mixed_precision
    tensorflow.mixed_precision.experimental = outer
    sys.modules[outer.__name__] = outer


def _loss_scale(tensorflow: Any, value: Any) -> Any:
    scales = tensorflow.compat.v1.train.experimental
    if value == "dynamic":
        return scales.DynamicLossScale()
    return scales.FixedLossScale(value) if isinstance(value, (int, float)) else value
