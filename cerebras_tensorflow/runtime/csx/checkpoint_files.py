"""The part of other CSX in a checkpoint: each writes what it owns, and may read what it needs itself."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed, wait
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cerebras_tensorflow.runtime.csx.messages import Message
from cerebras_tensorflow.runtime.csx.owner_threads import OwnerThreads

_SENDING_BYTES = 256 << 20  # values that are on their way to other CSX
READ = "read"  # kind of a message: read a variable from a checkpoint; without a name, close the checkpoint


class CheckpointFiles(Protocol):
    """The checkpoints of a run, as a CSX other than the first one sees them. The saver implements it."""

    def write(self, part: bytes, pieces: Iterator[np.ndarray]) -> bytes:
        """Write a weight's bytes where the writer says; return what it needs to know, or nothing if that cannot be."""

    def flush(self) -> None:
        """Make durable what was written."""

    def read(self, path: str, key: str) -> np.ndarray:
        """Return a value of a checkpoint."""

    def close(self) -> None:
        """Release the files."""


@dataclass(frozen=True)
class Source:
    """Where a checkpoint has the value of a variable.

    Attributes:
        path: The checkpoint, as each CSX sees it.
        key: Name of the value.
        file: The file of the checkpoint that is removed first; empty if it is in object storage.
    """

    path: str
    key: str
    file: str = ""

    @property
    def is_gone(self) -> bool:
        """Whether somebody has removed the checkpoint, for example a training run beside an evaluation."""
        return bool(self.file) and not os.path.exists(self.file)


class Sources:
    """The variables that other CSX read from a checkpoint themselves, instead of getting them from the first one.

    Args:
        is_used: Whether they may.
    """

    def __init__(self, is_used: bool) -> None:
        self._is_used = is_used
        self._sources: dict[str, Source] = {}
        self._is_open = False

    def note(self, name: str, source: Source) -> None:
        """Note that a variable has its value from a checkpoint."""
        if self._is_used:
            self._sources[name] = source

    def changed(self, name: str) -> None:
        """Note that a variable may have another value now."""
        self._sources.pop(name, None)

    def message(self, name: str) -> Message | None:
        """Return the message for others to read a variable; None if they cannot."""
        source = self._sources.get(name)
        if source is None or source.is_gone:
            return None
        self._is_open = True
        return Message(READ, {"name": name, "path": source.path, "key": source.key})

    def end(self) -> Message | None:
        """Return the message that closes the checkpoint; None if nobody has opened it."""
        was_open, self._is_open = self._is_open, False
        return Message(READ, {"name": ""}) if was_open else None


class OwnersRead(OwnerThreads):
    """Sets the weights that other CSX own, in the background. A context manager.

    The owner reads a weight from the checkpoint, or gets its value from here.

    Args:
        owner_of: Returns the other CSX that owns a weight; None if there is none.
        read: read(owner, name, source) has an owner read a weight; None: no owner may.
        close: close(owner) has an owner close the checkpoint.
    """

    def __init__(
        self,
        owner_of: Callable[[str], int | None] = lambda _: None,
        read: Callable[[int, str, Source], object] | None = None,
        close: Callable[[int], object] = lambda _: None,
    ) -> None:
        super().__init__("csx-reads")
        self._owner_of = owner_of
        self._read = read
        self._close = close
        self._setting: dict[Future[object], str] = {}
        self._readers: set[int] = set()
        self._sending: deque[tuple[Future[object], int]] = deque()  # and sizes [B]

    def may_read(self, name: str) -> bool:
        """Whether another CSX may read a weight from the checkpoint itself."""
        return self._read is not None and self._owner_of(name) is not None

    def start(self, name: str, source: Source) -> bool:
        """Let the owner read a weight. Return False if it needs the value from here."""
        owner = self._owner_of(name)
        if owner is None or self._read is None or source.is_gone:
            return False
        self._readers.add(owner)
        self._setting[self._submit(owner, self._read, owner, name, source)] = name
        return True

    def make_room(self, num_bytes: int) -> None:
        """Wait until memory has room for a value of this size, beside those that are being sent."""
        while self._sending and sum(size for _, size in self._sending) + num_bytes > _SENDING_BYTES:
            wait([self._sending.popleft()[0]])

    def set(self, name: str, num_bytes: int, load: Callable[[], object]) -> bool:
        """Set a variable from here: in the background if another CSX owns it. Return whether it is in the background.

        Args:
            name: The variable.
            num_bytes: Its size.
            load: Sets it.
        """
        owner = self._owner_of(name)
        if owner is None:
            load()
            return False
        future = self._submit(owner, load)
        self._setting[future] = name
        self._sending.append((future, num_bytes))
        return True

    def finish(self) -> Iterator[str]:
        """Wait for all owners, and yield the name of each weight when it is set.

        Raises:
            CollectiveError: If an owner failed.
        """
        for future in as_completed(self._setting):
            future.result()
            yield self._setting[future]
        for owner in self._readers:
            self._close(owner)
