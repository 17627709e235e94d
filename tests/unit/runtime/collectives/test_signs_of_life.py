"""runtime.collectives.signs_of_life: a process that ended and one that hangs can be told apart."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cerebras_tensorflow.runtime.collectives.signs_of_life import (
    Sign,
    Watch,
    describe,
    error_file,
    has_ended,
    rank_file,
)


def test_a_process_has_ended_when_its_lock_is_gone(tmp_path: Path) -> None:
    path = rank_file(tmp_path, 1)
    assert not has_ended(path)
    sign = Sign(path)
    assert not has_ended(path)
    sign.close()
    assert has_ended(path)


def test_a_process_that_cannot_lock_its_file_does_not_count_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        sign = Sign(rank_file(tmp_path, 1))
    assert not has_ended(rank_file(tmp_path, 1))
    assert f"rank 1 on {os.uname().nodename} ended." in describe(tmp_path, 1, "ended.")
    sign.close()


def test_a_rank_whose_disk_was_too_full_for_its_error_is_named(tmp_path: Path) -> None:
    first, second = (Sign(rank_file(tmp_path, rank)) for rank in (0, 1))
    second.close()
    error_file(tmp_path, 1).touch()
    failure = Watch(tmp_path, 2, 60.0).failure()
    assert failure is not None and "ended without an error: killed, out of memory, or unable to write" in failure
    first.close()
