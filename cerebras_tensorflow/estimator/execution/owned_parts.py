"""What one of several CSX writes into a checkpoint: the weights that it owns, for the writer on the first CSX."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cerebras_tensorflow.saver.model_dir.async_writer import give_way
from cerebras_tensorflow.saver.part_writer import OtherFileError, PartWriter
from cerebras_tensorflow.saver.parts import Part

logger = logging.getLogger(__name__)


class OwnedParts:
    """Writes weights in a thread that gives way to the training."""

    def __init__(self) -> None:
        self._writer = PartWriter()
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

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._writer.close()
