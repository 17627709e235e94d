"""Large imports and compilations without the collection of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_OWN_OBJECTS = 300_000
"""A program that has made more objects before the import keeps them in its collections."""


@contextmanager
def permanent_objects() -> Iterator[None]:
    """Import TensorFlow in this context: no collection looks at its objects, now or later.

    Else the first full collection, while the model is built, looks at each of them, in a quarter of a second. What the
    program has made before is also left out: reference counts free it, but not if it becomes cyclic garbage.
    """
    own = len(gc.get_objects())
    with no_garbage_collection():
        yield
    if own <= _MOST_OWN_OBJECTS:
        gc.freeze()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Import a large package or compile a graph without collections of cyclic garbage: they take a quarter of its time.

    Both make up to a million objects that stay. Each collection looks at all of them and frees almost none.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
