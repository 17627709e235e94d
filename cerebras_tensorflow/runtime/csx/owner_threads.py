"""One thread for each CSX that owns weights: what is asked of different owners happens at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class OwnerThreads:
    """Base of what calls functions in one background thread per owner. A context manager: its end waits for them.

    Args:
        name: The threads are called `<name>-<owner>`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: dict[int, ThreadPoolExecutor] = {}

    def _submit(
        self, owner: int, function: Callable[Arguments, Result], *values: Arguments.args, **named: Arguments.kwargs
    ) -> Future[Result]:
        """Call a function in the thread of an owner, after what was submitted there before."""
        if owner not in self._threads:
            self._threads[owner] = ThreadPoolExecutor(1, f"{self._name}-{owner}")
        return self._threads[owner].submit(function, *values, **named)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
