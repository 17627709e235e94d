"""performance.json holds the measurements of a run; a failure to write it does not stop the run."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from cerebras_tensorflow.perf.performance import Performance, write

MEASURED = Performance(1.0, 2.0, 300.0, 4000, 13.0, 1e6, False)


def test_the_file_marks_simulated_figures(tmp_path: Path) -> None:
    path = write(str(tmp_path), MEASURED)
    assert path == tmp_path / "performance" / "performance.json"
    content = json.loads(path.read_text())
    assert content["simulated"] == ["est_samples_per_sec"]
    assert (content["samples_per_sec"], content["total_samples"]) == (300.0, 4000)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["mkdir", "open", "fsync"])
def test_a_file_that_cannot_be_written_is_a_warning_only(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with caplog.at_level(logging.WARNING):
            assert write(str(tmp_path), MEASURED) is None
    assert os.strerror(code) in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
