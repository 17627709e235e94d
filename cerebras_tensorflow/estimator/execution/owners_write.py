"""A checkpoint of several CSX: each writes the weights that it owns, at the same time as the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from typing import Any

from cerebras_tensorflow.runtime.csx.owner_threads import OwnerThreads
from cerebras_tensorflow.runtime.weight_store.snapshot import OwnedElsewhere
from cerebras_tensorflow.saver.interface import TensorWriter
from cerebras_tensorflow.saver.part_writer import PartWriter
from cerebras_tensorflow.saver.parts import Part, Written


class OwnersWrite(OwnerThreads):
    """Lets the owners of weights write them. A context manager: after an error it waits until no owner writes.

    The place of each weight follows from the order of `place` and `add` alone. So the checkpoint does not depend on
    the number of CSX.

    Args:
        writer: The writer of the checkpoint.
        check: Raises an error if the checkpoint is no longer wanted.
    """

    def __init__(self, writer: TensorWriter, check: Callable[[], None]) -> None:
        super().__init__("checkpoint-csx")  # an owner writes one weight at a time
        self._writer = writer
        self._check = check
        self._written: dict[Future[Written], tuple[str, int]] = {}
        self._flushes: dict[int, Callable[[], object]] = {}

    def place(self, name: str, dtype: Any, shape: tuple[int, ...], weight: OwnedElsewhere) -> bool:
        """Give a weight its place and let the owner write it in the background.

        Args:
            name: Its name in the checkpoint.
            dtype: Its type.
            shape: Its shape.
            weight: The weight, in a snapshot that stays open until `finish`.

        Returns:
            Whether the owner writes it. Otherwise the writer needs its bytes, and nothing is done.
        """
        part = self._writer.place(name, dtype, shape)
        if part is None:
            return False
        future = self._submit(weight.owner, self._write, part, weight)
        self._written[future] = (name, part.num_bytes)
        self._flushes[weight.owner] = weight.flush
        return True

    def finish(self) -> Iterator[int]:
        """Wait for all owners, and yield the size of each weight when it is written [B].

        Raises:
            CollectiveError: If an owner failed, or has ended.
            CheckpointError: If the checkpoint is no longer wanted, or cannot be written.
        """
        for future in as_completed(self._written):
            name, num_bytes = self._written[future]
            self._writer.placed(name, future.result())
            yield num_bytes
        for flushed in [self._submit(owner, flush) for owner, flush in self._flushes.items()]:
            flushed.result()

    def _write(self, part: Part, weight: OwnedElsewhere) -> Written:
        self._check()
        answer = weight.write(part.to_json())
        if answer:
            return Written.from_json(answer)
        # The owner does not see the file: its node does not share the folder.
        own = PartWriter()
        try:
            return own.write(part, weight)
        finally:
            own.close()  # the writer makes the file durable
