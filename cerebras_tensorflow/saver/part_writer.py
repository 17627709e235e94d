"""Writes parts of a checkpoint for the process that has its writer."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.files.atomic import reporting
from cerebras_tensorflow.saver.files.contiguous import write_run
from cerebras_tensorflow.saver.files.writeback import WriteBehind
from cerebras_tensorflow.saver.interface import BytesLike
from cerebras_tensorflow.saver.parts import Part, Written


class OtherFileError(CheckpointError):
    """This process does not see the file of the writer: the folder is not shared."""


class PartWriter:
    """Writes the parts of one checkpoint after another, and keeps the file open from one part to the next.

    Only one thread may use it at a time.
    """

    def __init__(self) -> None:
        self._path = ""
        self._behind: WriteBehind | None = None

    def write(self, part: Part, chunks: Iterable[BytesLike]) -> Written:
        """Write the bytes of a tensor.

        Args:
            part: Where they go.
            chunks: The bytes, in pieces of any size.

        Raises:
            OtherFileError: If the file is not there, or is another one.
            CheckpointError: If the bytes cannot be written.
            ValueError: If the pieces have another size together.
        """
        if not part.objects:
            return Written(write_run(self._file(part), part.path, part.offset, part.num_bytes, chunks, part.path))
        from cerebras_tensorflow.saver.objects.sender import ObjectSender
        from cerebras_tensorflow.saver.objects.store import Bucket

        location = object_location(part.path)
        if location is None:
            raise CheckpointError(f"{part.path}: expected the URL of a checkpoint in object storage")
        sender = ObjectSender(Bucket(location))
        try:
            written = sender.send_tensor(part.path, location.key, part.objects, chunks)
            sender.wait()
        finally:
            sender.close()
        return written

    def finish(self) -> None:
        """Make the written bytes durable, and close the file.

        Raises:
            CheckpointError: If the disk fails.
        """
        behind = self._behind
        if behind is not None:
            try:
                with reporting(self._path):
                    behind.finish()
                    files.flush(behind.fd, has_metadata=False)
            finally:
                self.close()

    def close(self) -> None:
        """Close the file; the kernel writes it at a time of its choice."""
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.stop()
            os.close(behind.fd)

    def _file(self, part: Part) -> WriteBehind:
        """Return the file of a part.

        Raises:
            OtherFileError: If it is not there, or is another one.
        """
        if self._behind is None or self._path != part.path:
            self.close()
            try:
                fd = os.open(part.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as exc:
                raise OtherFileError(f"{part.path}: cannot be opened here: {exc.strerror}") from exc
            self._path, self._behind = part.path, WriteBehind(fd)
        if os.fstat(self._behind.fd).st_ino != part.inode:
            self.close()
            raise OtherFileError(f"{part.path}: it is another file here")
        return self._behind
