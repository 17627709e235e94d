"""Locations of checkpoints and folders: paths on this machine, or URLs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from cerebras_tensorflow.errors import SettingsError

AnyLocation: TypeAlias = str | bytes | os.PathLike[str]

# One slash is enough: pathlib turns `s3://bucket/run` into `s3:/bucket/run`.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
# Scheme -> how many parts of a URL name the container of objects: one for a bucket, two for account and container.
_OBJECT_SCHEMES = {"s3": 1, "gs": 1, "az": 2}


@dataclass(frozen=True)
class ObjectLocation:
    """A place in object storage: a checkpoint, a folder of checkpoints, or a bucket.

    Attributes:
        scheme: s3, gs or az.
        container: The bucket; for az, account and container.
        key: The name in the container, without leading and trailing slashes; empty for the container itself.
    """

    scheme: str
    container: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.container}/{self.key}".rstrip("/")


def object_location(path: AnyLocation) -> ObjectLocation | None:
    """Return the place in object storage that a URL names; None for a path or any other URL.

    Raises:
        SettingsError: If the URL lacks the bucket, or has empty or relative parts.

    >>> object_location("s3://bucket/run/model-ckpt-5")
    ObjectLocation(scheme='s3', container='bucket', key='run/model-ckpt-5')
    """
    text = os.fsdecode(path)
    match = _URL.match(text)
    if match is None or match[1].lower() not in _OBJECT_SCHEMES:
        return None
    scheme = match[1].lower()
    parts = text[match.end() :].strip("/").split("/")
    if not all(part.strip(".") for part in parts) or len(parts) < _OBJECT_SCHEMES[scheme]:
        example = "az://account/container/name" if scheme == "az" else f"{scheme}://bucket/name"
        raise SettingsError(f"{text}: expected a URL such as {example}, without empty parts, '.' or '..'")
    count = _OBJECT_SCHEMES[scheme]
    return ObjectLocation(scheme, "/".join(parts[:count]), "/".join(parts[count:]))


def checkpoint_location(path: AnyLocation) -> str:
    """Return a checkpoint's path, or its URL if it is in object storage.

    Call it on every checkpoint that a caller names, before anything runs.

    Raises:
        SettingsError: As `local_path` and `object_location`.
    """
    location = object_location(path)
    return local_path(path) if location is None else str(location)


def local_path(path: AnyLocation) -> str:
    """Return the path for a path or a file:// URL.

    Call it on every folder or file that a caller names, before anything runs. Otherwise the file system would take
    `s3:`, the start of a URL, for the name of a folder.

    Raises:
        SettingsError: If it is a URL of another scheme, or of another host.

    >>> local_path("model_dir/model.ckpt-100"), local_path("file:///data/my%20run")
    ('model_dir/model.ckpt-100', '/data/my run')
    """
    text = os.fsdecode(path)
    match = _URL.match(text)
    if match is None:
        return text
    scheme = match[1].lower()
    if scheme in _OBJECT_SCHEMES:
        raise SettingsError(
            f"{text}: {scheme}:// cannot be used here; expected a path or a file:// URL. Object storage takes whole "
            "checkpoints, model_dir and exports; nothing in it is changed in place."
        )
    if scheme != "file":
        known = ", ".join(f"{name}://" for name in _OBJECT_SCHEMES)
        raise SettingsError(
            f"{text}: {scheme}:// cannot be read or written here; expected a path or a file:// URL (for checkpoints, "
            f"model_dir and exports also {known}). If you mean a folder with the name '{match[1]}:', write ./{text}."
        )
    url = urlsplit(text)
    if url.netloc not in ("", "localhost"):
        raise SettingsError(f"{text}: a file on the host {url.netloc!r}; expected file:/// and a path on this machine")
    return unquote(url.path)
