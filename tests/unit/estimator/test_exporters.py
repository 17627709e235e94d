"""Which exports an exporter removes."""

from __future__ import annotations

from pathlib import Path

from cerebras_tensorflow.estimator.export.exporters import _retire


def test_only_folders_of_exports_are_removed(tmp_path: Path) -> None:
    exports, other = tmp_path / "exports", tmp_path / "other"
    for folder in (exports / "1700000001", exports / "1700000002", exports / "1700000003", other):
        folder.mkdir(parents=True)
        (folder / "saved_model.pb").touch()
    (exports / "1600000000").symlink_to(other)
    (exports / "1600000001").write_text("a note")
    _retire(str(exports), 2)
    assert sorted(path.name for path in exports.iterdir()) == ["1600000000", "1600000001", "1700000002", "1700000003"]
    assert (other / "saved_model.pb").exists()
