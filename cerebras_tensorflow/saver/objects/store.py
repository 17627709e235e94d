"""A bucket, through obstore: reads and writes with retries. Errors say what to do, and never show credentials."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.objects import failures

logger = logging.getLogger(__name__)

Version: TypeAlias = dict[str, str]
"""What a conditional write compares: s3 and az take the `e_tag`, gs takes the `version` (its generation)."""

_Result = TypeVar("_Result")

_ATTEMPTS = 10
_MANY_OBJECTS = 100
_SIZE_THREADS = 8
_REQUEST_TIMEOUT_S = 120  # of one attempt; ours send at most 32 MiB in one request
_RETRY_TIMEOUT_S = 180  # after so long no attempt begins
_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_S = 15
_COPIED_BYTES = 8 << 20
_MIB = 1 << 20
_MOST_PARTS = 10_000  # of an object of S3
_SMALLEST_PART_BYTES = 8 << 20
_SENDING_BYTES = 128 << 20  # parts of a file at a time
_MAX_SMALL_BYTES = 256 << 20


@dataclass(frozen=True)
class StoredObject:
    """One object of a listing.

    Attributes:
        size: Its size [B].
        modified: When it was written.
    """

    key: str
    size: int
    modified: datetime.datetime


class ConflictError(CheckpointError):
    """Another writer created or changed the object first."""


class _TransientError(CheckpointError):
    """A request that may succeed if it is repeated."""


class Bucket:
    """The objects of one container.

    Args:
        location: Any place in the container.

    Raises:
        CheckpointError: If obstore is missing, or does not accept the settings.
    """

    def __init__(self, location: ObjectLocation) -> None:
        self._root = f"{location.scheme}://{location.container}"
        try:
            import obstore
            from obstore.store import AzureStore, from_url
        except ImportError as exc:
            raise CheckpointError(
                f"{location}: object storage needs the package obstore: pip install 'cerebras_tensorflow[cloud]'"
            ) from exc
        self._obstore: Any = obstore
        settings = env.object_storage(location.scheme)
        options: Any = {"timeout": datetime.timedelta(seconds=_REQUEST_TIMEOUT_S)}
        if settings.pop("allow_http", ""):
            options["allow_http"] = True

        def opened(num_retries: int) -> Any:
            retry: Any = {
                "max_retries": num_retries,
                "retry_timeout": datetime.timedelta(seconds=_RETRY_TIMEOUT_S),
                "backoff": {"init_backoff": datetime.timedelta(milliseconds=_FIRST_PAUSE_MS), "base": 2},
            }
            words: Any = {"config": settings or None, "client_options": options, "retry_config": retry}
            if location.scheme == "az":
                # from_url takes the first part of an az URL for the container.
                account, _, container = location.container.partition("/")
                return AzureStore(container, account_name=account, **words)
            return from_url(self._root, **words)

        with self._reporting(None, "be opened"):
            self._store = opened(0)  # `_again` repeats requests, and logs it
            # Only obstore can repeat one part of a large file. It does not log that: the first attempt is without.
            self._store_of_parts = opened(_ATTEMPTS)

    def url(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{self._root}/{key}"

    def get(self, key: str) -> tuple[bytes, Version] | None:
        """Return a small object's content and its version; None if there is no such object."""

        def read() -> tuple[bytes, Version]:
            result = self._obstore.get(self._store, key)
            if result.meta["size"] > _MAX_SMALL_BYTES:
                raise CorruptCheckpointError(
                    f"{self.url(key)}: {result.meta['size']} bytes; at most {_MAX_SMALL_BYTES} are read"
                )
            return bytes(result.bytes()), _version(result.meta)

        with contextlib.suppress(FileNotFoundError):
            return self._again(read, key, "be read", is_missing_raised=True)
        return None

    def size(self, key: str) -> int | None:
        """Return an object's size [B]; None if there is no such object."""
        with contextlib.suppress(FileNotFoundError):
            head = self._again(lambda: self._obstore.head(self._store, key), key, "be read", is_missing_raised=True)
            return int(head["size"])
        return None

    def version(self, key: str) -> Version | None:
        """Return an object's version; None if there is no such object."""
        with contextlib.suppress(FileNotFoundError):
            return _version(self._again(lambda: self._obstore.head(self._store, key), key, "be read", True))
        return None

    def get_range(self, key: str, start: int, size: int) -> memoryview:
        """Return a part of an object.

        Raises:
            CheckpointError: If the object is missing or shorter, or cannot be read.
        """

        def read() -> memoryview:
            return memoryview(self._obstore.get_range(self._store, key, start=start, length=size))

        content = self._again(read, key, "be read")
        if content.nbytes != size:
            raise CheckpointError(f"{self.url(key)}: {content.nbytes} bytes were read at {start} instead of {size}")
        return content

    def put(self, key: str, content: bytes | bytearray) -> None:
        """Write an object; replace an existing object of this name."""
        self._again(lambda: self._obstore.put(self._store, key, content, use_multipart=False), key, "be written")

    def put_file(self, key: str, path: str) -> None:
        """Write a file as an object; replace an existing object of this name. A large file is sent in parts.

        Raises:
            CheckpointError: If the file cannot be read, or the object cannot be written.
        """
        part = part_bytes(os.path.getsize(path))
        words: Any = {"chunk_size": part, "max_concurrency": max(1, _SENDING_BYTES // part)}

        def write(store: Any) -> None:
            self._obstore.put(store, key, Path(path), **words)

        try:
            with self._reporting(key, "be written"):
                write(self._store)
        except _TransientError as exc:
            logger.warning(
                "%s Sending %s again, from its start. From now on, a part that fails is sent again without a message.",
                exc,
                path,
            )
            self._again(lambda: write(self._store_of_parts), key, "be written")

    def get_file(self, key: str, path: str) -> None:
        """Copy an object into a new file.

        Raises:
            CheckpointError: If there is no such object, or it cannot be read.
            OSError: If the file cannot be written.
        """
        size = self.size(key)
        if size is None:
            raise CheckpointError(f"{self.url(key)}: there is no such object. Check the URL.")
        with open(path, "xb") as file:
            for start in range(0, size, _COPIED_BYTES):
                file.write(self.get_range(key, start, min(_COPIED_BYTES, size - start)))

    def put_if(self, key: str, content: bytes, replaced: Version | None) -> None:
        """Write a small object, if nobody else has.

        Args:
            key: Its name.
            content: All bytes.
            replaced: The version to replace, from `get`; None: it must not exist.

        Raises:
            ConflictError: If another writer was first. That writer may be this call itself: if the response to its
                first request was lost, the repeated request fails.
        """
        mode: Any = "create" if replaced is None else replaced
        exceptions = self._obstore.exceptions
        conflicts = (exceptions.AlreadyExistsError, exceptions.PreconditionError)

        def write() -> None:
            try:
                self._obstore.put(self._store, key, content, mode=mode, use_multipart=False)
            except conflicts as exc:
                raise ConflictError(f"{self.url(key)}: another writer was first") from exc

        self._again(write, key, "be written")

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. An object that does not exist is not an error."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._again(functools.partial(self._obstore.delete, self._store, key), key, "be removed", True)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix."""
        pages: Iterator[Any] | None = None
        last: str | None = None

        def next_page() -> Any:
            nonlocal pages
            # An iterator that has failed is of no use: begin a new one behind the last object.
            running, pages = pages or iter(self._obstore.list(self._store, prefix=prefix or None, offset=last)), None
            page = next(running, None)
            pages = running
            return page

        while page := self._again(next_page, prefix, "be listed"):
            for item in page:
                last = item["path"]
                yield StoredObject(item["path"], int(item["size"]), item["last_modified"])

    def children(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names directly below a prefix: those that have objects below them, and those of objects."""
        found = self._again(
            lambda: self._obstore.list_with_delimiter(self._store, prefix=prefix or None), prefix, "be listed"
        )
        paths = [name.rstrip("/") for name in found["common_prefixes"]], [item["path"] for item in found["objects"]]
        folders, names = ([path.rpartition("/")[2] for path in group] for group in paths)
        return folders, names

    def _again(self, request: Callable[[], _Result], key: str, action: str, is_missing_raised: bool = False) -> _Result:
        """Return the result of a request; repeat it for a bounded time if it fails, and log that."""
        end_s = time.monotonic() + _RETRY_TIMEOUT_S
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._reporting(key, action, is_missing_raised):
                    return request()
            except _TransientError as exc:
                # Random, so that several clients do not come back at the same time.
                pause_s = min(_FIRST_PAUSE_MS / 1000 * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1)
                if attempt == _ATTEMPTS or time.monotonic() + pause_s > end_s:
                    raise CheckpointError(str(exc)) from None
                # Failures alone are normal with many requests.
                level = logging.INFO if attempt == 1 else logging.WARNING
                logger.log(level, "%s Attempt %d of %d in %.1f s.", exc, attempt + 1, _ATTEMPTS, pause_s)
                time.sleep(pause_s)

    @contextlib.contextmanager
    def _reporting(self, key: str | None, action: str, is_missing_raised: bool = False) -> Iterator[None]:
        """Turn an error of obstore into a CheckpointError that says what to do, without credentials."""
        url = self.url(key or "")
        try:
            yield
        except FileNotFoundError as exc:
            # A missing bucket is not a missing object.
            if is_missing_raised and "NoSuchBucket" not in str(exc):
                raise
            raise CheckpointError(f"{url}: there is no such object or bucket. Check the URL.") from None
        except (self._obstore.exceptions.BaseError, PermissionError, ValueError) as exc:
            hint = failures.advice(exc, key)
            text = f"{url}: cannot {action}: {failures.without_credentials(str(exc))} {hint}"
            raise (_TransientError if failures.is_transient(hint) else CheckpointError)(text) from None


def part_bytes(size: int) -> int:
    """Return the size of the parts in which a file of some size is sent [B].

    >>> part_bytes(1 << 30) >> 20, part_bytes(5 << 40) >> 20
    (8, 525)
    """
    return max(_SMALLEST_PART_BYTES, -(-size // _MOST_PARTS // _MIB) * _MIB)


def _version(meta: Any) -> Version:
    # obstore refuses None.
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


def sizes_of(bucket: Bucket, folder: str, keys: Sequence[str]) -> Iterable[int | None]:
    """Return the sizes of a checkpoint's objects [B]; None for each that does not exist."""
    if len(keys) > _MANY_OBJECTS:
        # A listing takes one request for a thousand objects. It needs a right that not every user has.
        with contextlib.suppress(CheckpointError):
            found = {item.key: item.size for item in bucket.list(folder)}
            return [found.get(key) for key in keys]
    with ThreadPoolExecutor(_SIZE_THREADS, "object-sizes") as pool:
        return list(pool.map(bucket.size, keys))
