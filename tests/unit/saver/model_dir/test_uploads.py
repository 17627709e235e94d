"""The list of uploaded files, whose content may be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.saver.model_dir import uploads

URL = "s3://bucket/model"


@pytest.mark.parametrize("content", ['{"a": [Infinity, 1]}', "[" * 200_000, "[1]", '{"a": null}', ""])
def test_a_damaged_list_of_uploaded_files_is_made_anew(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(work_folder(URL))
    folder.mkdir(parents=True)
    (folder / "graph.pbtxt").write_text("old")
    (folder / ".uploaded.json").write_text(content)
    assert uploads.begin(URL) == str(folder)
    assert "graph.pbtxt" in (folder / ".uploaded.json").read_text()
