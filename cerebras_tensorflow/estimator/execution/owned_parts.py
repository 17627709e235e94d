"""What one of several CSX writes into a checkpoint: the weights that it owns, for the writer on the first CSX."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.model_dir.async_writer import give_way
from cerebras_tensorflow.saver.part_writer import OtherFileError, PartWriter
from cerebras_tensorflow.saver.parts import Part

logger = logging.getLogger(__name__)


class OwnedParts:
    """Reads values, and writes weights in a thread that gives way to the training."""

    def __init__(self) -> None:
        self._writer = PartWriter()
        self._reader: TensorReader | None = None
        self._path = ""  # what it reads
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "checkpoint-part", give_way)

    def write(self, part: bytes, pieces: Iterator[np.ndarray]) -> bytes:
        """Write a weight's bytes where the writer says.

        Args:
            part: A `Part` as JSON.
            pieces: The bytes.

        Returns:
            `Written` as JSON; empty if this process does not see the writer's file.

        Raises:
            CheckpointError: If the bytes cannot be written.
        """
        with self._lock:
            try:
                return self._thread.submit(self._writer.write, Part.from_json(part), pieces).result().to_json()
            except OtherFileError as error:
                logger.info("%s The first CSX writes it.", error)
                return b""

    def flush(self) -> None:
        """Make durable what was written.

        Raises:
            CheckpointError: If the disk fails.
        """
        with self._lock:
            self._thread.submit(self._writer.finish).result()

    def read(self, path: str, key: str) -> np.ndarray:
        """Return a value of a checkpoint, which stays open until `close`.

        Raises:
            CheckpointError: If the checkpoint cannot be read from here.
        """
        with self._lock:
            if self._reader is None or self._path != path:
                self._close_reader()
                try:
                    self._path, self._reader = path, open_checkpoint(path)
                except (CheckpointError, OSError) as error:
                    raise CheckpointError(
                        f"{error} With read_once false each CSX reads the checkpoint: this node does not see it, or "
                        "another run has removed it. Set read_once to true, or keep it where all nodes see it."
                    ) from error
            return self._reader.read(key)

    def close(self) -> None:
        """Release the files."""
        with self._lock:
            self._writer.close()
            self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
