"""Large imports without the collection of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Import a large package without collections of cyclic garbage: they take a quarter of the time of its import.

    TensorFlow makes a million objects that stay. Each collection looks at all of them and frees almost none.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
