"""Signatures of cached Programs. A graph can write files, so only graphs that this user compiled are run."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat

from cerebras_tensorflow import files
from cerebras_tensorflow.config import env

logger = logging.getLogger(__name__)

KEY_FILE = "program.key"
_KEY_BYTES = 32


def sign(folder_name: str, *contents: bytes) -> str | None:
    """Return the signature of the files of one folder; None without a key.

    Args:
        folder_name: Name of the folder. It is signed too, so that a Program cannot be moved to another folder.
        *contents: Content of each file.
    """
    key = _key()
    if key is None:
        return None
    digest = hmac.new(key, folder_name.encode(), hashlib.sha256)
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def is_signed(signature: str, folder_name: str, *contents: bytes) -> bool:
    """Whether this user made a signature for these files."""
    own = sign(folder_name, *contents)
    return own is not None and hmac.compare_digest(own.encode(), signature.strip().encode())


def _key() -> bytes | None:
    """Return the user's key, which is made on first use. None if CEREBRAS_HOME cannot keep it private."""
    path = env.read().home / KEY_FILE
    try:
        if not path.exists():
            with files.closed_to_others():
                path.parent.mkdir(parents=True, exist_ok=True)
            files.create_once(path, secrets.token_bytes(_KEY_BYTES))
        status = path.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            logger.warning("%s can be read by others: compiled programs are not reused. Remove the file.", path)
            return None
        key = files.read_regular(path, _KEY_BYTES)
    except OSError as error:
        logger.info("compiled programs are not reused: %s cannot be kept (%s)", path, error)
        return None
    return key if len(key) == _KEY_BYTES else None
