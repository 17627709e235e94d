"""The import hook: makes the table's modules importable, and runs callbacks after imports of other packages."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cerebras_tensorflow.compat import wheel
from cerebras_tensorflow.compat.names import ABSENT, ALIASES, TABLE, Name
from cerebras_tensorflow.garbage import no_garbage_collection

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from importlib.abc import Loader, MetaPathFinder
else:
    # These bases add no behaviour, and importing them takes a tenth of the start of every command.
    Loader = MetaPathFinder = object

_REAL_MODULES = {
    *("cerebras_appliance", "cerebras", "tfwse", "cerebras_tensorflow"),
    *("cerebras_tensorflow.saver", "cerebras_tensorflow.saver.checkpoint_reader"),
    *("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "tensorflow.compat.v2", "tensorflow.keras"),
    *(
        "tensorflow.python",
        "tensorflow.python.distribute",
        "tensorflow.python.tpu",
        "tensorflow.python.training",
        "tf_keras",
    ),
}
"""Modules that exist as files, ours or TensorFlow's. The finder serves only what is missing below them."""


def _modules() -> dict[str, dict[str, Name]]:
    """Module -> name -> row, for all modules of the table and the packages above them."""
    modules: dict[str, dict[str, Name]] = {}
    for row in TABLE:
        parts = row.module.split(".")
        for end in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:end]), {})
        if row.name:
            modules[row.module].setdefault(row.name, row)
    return modules


MODULES: Mapping[str, Mapping[str, Name]] = _modules()


def tensorflow_has_estimator() -> bool:
    """Whether the installed TensorFlow has a tf.estimator of its own. Does not import TensorFlow."""
    version = getattr(sys.modules.get("tensorflow"), "__version__", None) or _installed_version()
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < (2, 16)


def _installed_version() -> str | None:
    from importlib import metadata  # here, because it is slow and only needed before TensorFlow is imported

    for distribution in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def resolve(row: Name) -> Any:
    """Return the object that a row stands for.

    Raises:
        AttributeError: If the row is ABSENT. The text gives the row's note.
    """
    if row.status == ABSENT:
        raise AttributeError(f"{row.module}.{row.name} is not part of this port{f': {row.note}' if row.note else ''}.")
    module, _, attribute = row.home.partition(":")
    with no_garbage_collection():
        return operator.attrgetter(attribute)(importlib.import_module(module))


def _own(rows: Mapping[str, Name]) -> dict[str, Any]:
    """Return the objects of rows by name."""
    return {name: resolve(row) for name, row in rows.items() if row.status != ABSENT}


_SERVED = (*{name.split(".")[0] for name in MODULES},)


class LazyNames(ModuleType):
    """A module whose names are looked up in the table on first use."""

    def __getattr__(self, name: str) -> Any:
        rows = MODULES.get(self.__name__, {})
        if name in rows:
            value = resolve(rows[name])
            setattr(self, name, value)
            return value
        child = f"{self.__name__}.{name}"
        if child in MODULES or (self.__name__.startswith(wheel.NAME) and wheel.find_spec(child) is not None):
            return importlib.import_module(child)
        behind = None if name.startswith("__") else wheel.original(self.__name__, lambda: _own(rows))
        if behind is not None and hasattr(behind, name):
            return getattr(behind, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        rows = MODULES.get(self.__name__, {})
        children = {module.rpartition(".")[2] for module in MODULES if module.rpartition(".")[0] == self.__name__}
        return sorted({*super().__dir__(), *(name for name, row in rows.items() if row.status != ABSENT), *children})


class LazyModule(ModuleType):
    """A stand-in for a module. The first use of one of its names loads the module."""

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        super().__init__(name)
        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)

    def __dir__(self) -> list[str]:
        return dir(self._load())


class _TableLoader(Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = LazyNames(spec.name, f"Names of {spec.name}, from the table in cerebras_tensorflow/compat/names.py.")
        rows = MODULES[spec.name].items()
        module.__all__ = sorted(name for name, row in rows if row.status != ABSENT)  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up on first use."""


class _AliasLoader(Loader):
    """Loads a module under a second name."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let importlib make an empty module. exec_module replaces it."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace this module in sys.modules by the one of the other name."""
        sys.modules[module.__name__] = importlib.import_module(self._target)


class _WatchedLoader(Loader):
    """Runs another loader, then the callbacks that wait for the module."""

    def __init__(
        self,
        loader: Any,
        callbacks: Sequence[Callable[[ModuleType], None]],
        surroundings: Callable[[], AbstractContextManager[None]],
        done: Callable[[], None],
    ) -> None:
        self._loader = loader
        self._callbacks = callbacks
        self._surroundings = surroundings
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._surroundings():
            self._loader.exec_module(module)
            for callback in self._callbacks:
                _call(callback, module)
        self._done()


def _call(callback: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Call a callback. If it fails, log a warning: programs that do not need our names must still import the module."""
    try:
        callback(module)
    except Exception as error:  # noqa: BLE001 - a damaged installation may raise anything
        import logging

        logging.getLogger(__name__).warning(
            "cerebras_tensorflow could not add its names to %s (%s: %s); %s itself works.",
            *(module.__name__, type(error).__name__, error, module.__name__),
        )


class Finder(MetaPathFinder):
    """Finds the modules of the table, and runs callbacks after watched imports."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._surroundings: dict[str, Callable[[], AbstractContextManager[None]]] = {}

    def watch(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """Run a callback after a module has been imported; now if it is imported already."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            callback(module)
        else:
            self._waiting.setdefault(name, []).append(callback)

    def surround(self, name: str, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Run a module's import and callbacks within a context. No effect if it is imported already."""
        self._surroundings[name] = context
        self._waiting.setdefault(name, [])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a watched module or of a module of the table; None for all others."""
        if fullname in self._waiting:
            return self._watched_spec(fullname, path, target)
        if not fullname.startswith(_SERVED) or fullname in _REAL_MODULES:
            return None
        # TensorFlow has more than a thousand modules, and the check below reads a file until its version is known.
        if fullname.startswith("tensorflow.") and fullname not in MODULES and not fullname.startswith(tuple(ALIASES)):
            return None
        if fullname.startswith("tensorflow") and tensorflow_has_estimator():
            return None
        for old, new in ALIASES.items():
            if fullname == old or fullname.startswith(f"{old}."):
                loader = _AliasLoader(new + fullname[len(old) :])
                return importlib.util.spec_from_loader(fullname, loader, is_package=True, origin=__file__)
        if fullname not in MODULES:
            return wheel.find_spec(fullname)
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return importlib.util.spec_from_loader(fullname, _TableLoader(), is_package=is_package, origin=__file__)

    def _watched_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        # Another finder may ask this one in turn; it must not find the module watched again.
        callbacks = self._waiting.pop(fullname)
        try:
            for finder in list(sys.meta_path):
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None and spec.loader is not None:
                    around = self._surroundings.get(fullname, nullcontext)
                    done = functools.partial(self._forget, fullname)
                    spec.loader = _WatchedLoader(spec.loader, callbacks, around, done)
                    return spec
            return None
        finally:
            # A program may look a spec up without importing it, and may try a failed import again.
            self._waiting[fullname] = callbacks

    def _forget(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._surroundings.pop(name, None)


FINDER = Finder()


def install() -> None:
    """Put the finder first. Else an installed tensorflow_estimator, which cannot be imported, would hide ours."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def import_table_module(name: str) -> ModuleType:
    """Import a module of the table, even while its parent package is still being imported."""
    if name not in sys.modules:
        spec = FINDER.find_spec(name, None)
        if spec is None:
            raise ImportError(f"{name} is not in the table of cerebras_tensorflow.compat")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
    return sys.modules[name]
