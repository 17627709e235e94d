"""Serves modules of the wheel tensorflow-estimator 2.15 (canned estimators, heads and their helpers) on our core.

On TensorFlow 2.16 to 2.21 the wheel fails to import: it expects Keras 2 as `tf.keras`, and it imports modules
that TensorFlow has dropped. Its files are loaded unchanged, but their `import tensorflow as tf` gives an adapted one.
Names of our table (Estimator, EstimatorSpec, RunConfig, ...) come from us.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

NAME = "tensorflow_estimator"
_ORIGINAL = "cerebras_tensorflow.compat.original_"
"""Prefix in sys.modules for a wheel module that supplies the names that our module of the same name lacks."""


@functools.cache
def folder() -> str | None:
    """Return the folder of the installed wheel, or None."""
    for entry in sys.path:
        spec = importlib.machinery.PathFinder.find_spec(NAME, [entry])
        if spec is not None and spec.origin is not None:
            return os.path.dirname(spec.origin)
    return None


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a wheel module under its own name; None if the wheel lacks it."""
    return _spec(name, name)


def original(name: str, own: Callable[[], Mapping[str, Any]]) -> ModuleType | None:
    """Load the wheel's own version of a module in our table under another name; None if the wheel has none.

    Args:
        name: The module.
        own: Returns our names of the module. They replace the wheel's, so its code makes our EstimatorSpec.
    """
    hidden = _ORIGINAL + name.replace(".", "_")
    if hidden in sys.modules:
        return sys.modules[hidden]
    spec = _spec(name, hidden)
    if spec is None or spec.submodule_search_locations is not None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[hidden] = module
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
        vars(module).update(own())
    except BaseException:
        del sys.modules[hidden]
        raise
    return module


def _spec(name: str, loaded_as: str) -> importlib.machinery.ModuleSpec | None:
    root = folder()
    if root is None or not name.startswith(f"{NAME}."):
        return None
    path = os.path.join(root, *name.split(".")[1:])
    if os.path.isfile(f"{path}.py"):
        return importlib.util.spec_from_loader(loaded_as, _Loader(loaded_as, f"{path}.py"), origin=f"{path}.py")
    package = os.path.join(path, "__init__.py")
    if not os.path.isfile(package):
        return None
    loader = _Loader(loaded_as, package)
    return importlib.util.spec_from_file_location(loaded_as, package, loader=loader, submodule_search_locations=[path])


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a file of the wheel with `_import_for_wheel` as its `import`."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_for_wheel}
        super().exec_module(module)


def _import_for_wheel(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import as Python does, except: tensorflow has Keras 2, and modules that it has dropped get stand-ins."""
    if name == "tensorflow" and not fromlist:
        return tensorflow()
    if name in DROPPED and fromlist and importlib.util.find_spec(name) is None:
        shown = ModuleType(name)
        shown.__dict__.update({item: _dropped_class(name, item) for item in fromlist})
        return shown
    module = builtins.__import__(name, globals, locals, fromlist, level)
    dropped = [item for item in fromlist or () if f"{name}.{item}" in DROPPED and not hasattr(module, item)]
    if not dropped:
        return module
    shown = ModuleType(name)
    shown.__dict__.update(vars(module))
    for item in fromlist:
        full = f"{name}.{item}"
        setattr(shown, item, _Dropped(full) if item in dropped else getattr(module, item))
    return shown


DROPPED = {
    f"tensorflow.python.{module}"
    for module in (
        "distribute.estimator_training",
        "tpu.session_support",
        "tpu.tpu_embedding",
        "tpu.tpu_embedding_gradient",
    )
}
"""Modules that the wheel imports and TensorFlow 2.16 and later do not have."""


class _Dropped(ModuleType):
    """Stand-in for a dropped module. The distribute coordinator is reported as not in use; other names raise."""

    def should_run_distribute_coordinator(self, config: Any) -> bool:  # noqa: ARG002 - TensorFlow's signature
        """Return False."""
        return False

    def init_run_config(self, config: Any, tf_config: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.__name__}.{name} does not exist: TensorFlow 2.16 dropped its module")


def _dropped_class(module: str, name: str) -> type:
    """Return a class in place of one of a dropped module. Nothing is an instance of it."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{module}.{name} does not exist: TensorFlow 2.16 dropped its module")

    return type(name, (), {"__new__": refuse, "__module__": module})


class _Overlay(ModuleType):
    """A module with some attributes replaced. Each replacement is made on first use."""

    def __init__(self, module: Any, replaced: dict[str, Any]) -> None:
        super().__init__(getattr(module, "__name__", "tensorflow"))
        self.__dict__["_module"] = module
        self.__dict__["_replaced"] = replaced

    def __getattr__(self, name: str) -> Any:
        replaced = self.__dict__["_replaced"]
        value = replaced[name]() if name in replaced else getattr(self.__dict__["_module"], name)
        if name in replaced:
            self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_module"])


@functools.cache
def tensorflow() -> ModuleType:
    """Return TensorFlow as the wheel expects it: tf.keras, tf.compat.v1.keras and tf.compat.v1.layers are Keras 2."""
    import tensorflow as tf

    def keras_v1() -> Any:
        return importlib.import_module("tf_keras.api._v1.keras")

    def keras_v2() -> Any:
        return importlib.import_module("tf_keras.api._v2.keras")

    def v1() -> Any:
        return _Overlay(tf.compat.v1, {"keras": keras_v1, "layers": legacy_layers, "nn": nn})

    def nn() -> Any:
        return _Overlay(tf.compat.v1.nn, {"rnn_cell": legacy_rnn_cells})

    def of_keras(name: str) -> Callable[[], Any]:
        return lambda: getattr(keras_v2(), name)

    def v2() -> Any:
        return _Overlay(tf.compat.v2, made_by_keras)

    def compat() -> Any:
        return _Overlay(tf.compat, {"v1": v1, "v2": v2})

    made_by_keras = {name: of_keras(name) for name in ("losses", "metrics", "optimizers", "initializers")}
    made_by_keras["keras"] = keras_v2
    return _Overlay(tf, {**made_by_keras, "compat": compat})


def legacy_layers() -> Any:
    """Return tf.compat.v1.layers, which Keras 2 implements."""
    return importlib.import_module("tf_keras.api._v1.keras.__internal__.legacy.layers")


def legacy_rnn_cells() -> Any:
    """Return tf.compat.v1.nn.rnn_cell, which Keras 2 implements."""
    return importlib.import_module("tf_keras.api._v1.keras.__internal__.legacy.rnn_cell")
