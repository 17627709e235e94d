"""cli: the conversion commands and the inspector, as a user calls them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.saver import cli, tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.version import __version__

VALUES = {
    "dense/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "dense/bias": np.zeros(4, np.float32),
    "half": np.ones(3, ml_dtypes.bfloat16),
    "text": np.array([b"a", b""], object),
    "global_step": np.int64(7),
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    with BundleWriter(tmp_path / "in" / "model.ckpt-7") as writer:
        for name, value in VALUES.items():
            writer.add(name, value)
    return str(tmp_path / "in" / "model.ckpt-7")


def test_help_matches_the_published_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.tensorflow_to_h5(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert text.startswith("usage: tensorflow-to-h5 [-h] ")
    assert "saver_path h5_path\n\nConvert Tensorflow Saver Checkpoint to Cerebras H5 Format\n\npositional" in text
    assert " Path to existing saver checkpoint\n" in text and " Path to store converted h5 checkpoint\n" in text
    with pytest.raises(SystemExit):
        cli.h5_to_tensorflow(["--help"])
    text = capsys.readouterr().out
    assert "h5_path saver_path\n\nConvert Cerebras H5 Checkpoint to Tensorflow Saver Format\n\npositional" in text
    assert " Path to existing h5 checkpoint\n" in text and " Path to store converted saver checkpoint\n" in text


def test_help_needs_neither_tensorflow_nor_numpy() -> None:
    code = "import sys; from cerebras_tensorflow.saver import cli; cli._add_options(cli._parser('x', 'y'));"
    code += "print([m for m in ('tensorflow', 'numpy', 'h5py') if m in sys.modules])"
    start = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("options", [[], ["--shard-size", "40B"], ["--jobs", "1"], ["--sync"]])
def test_converting_there_and_back_gives_the_same_values(tmp_path: Path, source: str, options: list[str]) -> None:
    h5, back = str(tmp_path / "new" / "x.h5"), str(tmp_path / "back")
    assert cli.tensorflow_to_h5([source, h5, "--verify", "--quiet", *options]) == 0
    assert cli.h5_to_tensorflow([h5, back, "--verify", "--quiet"]) == 0
    # The same order of names and no shards, so even the files agree.
    with open_checkpoint(source) as first, open_checkpoint(back) as second:
        for name in first.names():
            assert first.read(name).tolist() == second.read(name).tolist()
            assert first.entry(name) == second.entry(name)


def test_index_files_and_model_dirs_may_be_sources(tmp_path: Path, source: str) -> None:
    assert cli.tensorflow_to_h5([source + ".index", str(tmp_path / "a.h5"), "--quiet"]) == 0
    (tmp_path / "in" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    assert cli.tensorflow_to_h5([str(tmp_path / "in"), str(tmp_path / "b.h5"), "--quiet"]) == 0
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_patterns_dtype_maps_and_layouts_apply(tmp_path: Path, source: str) -> None:
    layout = tmp_path / "layout"
    layout.write_text("# shard pattern\n0 dense/*\n1 global_step\n1 half\n")
    target = str(tmp_path / "x.h5")
    options = ["--exclude", "text", "--dtype-map", "float32=bfloat16", "--layout", str(layout), "--verify"]
    assert cli.tensorflow_to_h5([source, target, *options]) == 0
    loaded = tf_h5_saver.load(target)
    assert sorted(loaded) == ["dense/bias", "dense/kernel", "global_step", "half"]
    assert loaded["dense/kernel"].dtype == ml_dtypes.bfloat16
    assert sorted(tf_h5_saver.load(tmp_path / "x-00001-of-00002.h5")) == ["global_step", "half"]


def bad_input(tmp_path: Path, source: str) -> dict[str, tuple[list[str], str]]:
    """Arguments of tensorflow-to-h5 that must fail, and what the message must hold."""
    target = str(tmp_path / "x.h5")
    exists = tmp_path / "exists.h5"
    tf_h5_saver.save(exists, {"x": 1})
    (tmp_path / "misses").write_text("0 dense/*\n")
    (tmp_path / "repeats").write_text("0 *\n1 dense/*\n")
    (tmp_path / "broken").write_text("zero *\n")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    with BundleWriter(tmp_path / "holed", lambda name, size: int(name)) as writer:
        writer.add("0", 1)
        writer.add("1", 1)
    os.unlink(tmp_path / "holed.data-00001-of-00002")
    with BundleWriter(tmp_path / "cut") as writer:
        writer.add("x", np.zeros(100))
    os.truncate(tmp_path / "cut.data-00000-of-00001", 700)
    (tmp_path / "garbage.index").write_bytes(b"no index at all" * 50)
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty").touch()
    return {
        "no such source": ([str(tmp_path / "none"), target], "not a TensorFlow checkpoint"),
        "not a checkpoint": ([str(tmp_path / "empty"), target], "not a checkpoint"),
        "index is garbage": ([str(tmp_path / "garbage.index"), target], "damaged or not a checkpoint's index"),
        "folder without state": ([str(tmp_path / "plain"), target], "without a `checkpoint` state file"),
        "wrong kind": ([str(exists), target], "h5-to-tensorflow converts HDF5"),
        "target exists": ([source, str(exists)], "--force"),
        "same file": ([source, source + ".index"], "same checkpoint"),
        "target is a folder": ([source, str(tmp_path)], "a folder"),
        "missing shard": ([str(tmp_path / "holed"), target], "holed.data-00001-of-00002"),
        "truncated": ([str(tmp_path / "cut"), target], "truncated"),
        "layout misses": ([source, target, "--layout", str(tmp_path / "misses")], "no rule for tensor"),
        "layout repeats": ([source, target, "--layout", str(tmp_path / "repeats")], "comes too late"),
        "layout broken": ([source, target, "--layout", str(tmp_path / "broken")], "broken:1"),
        "layout missing": ([source, target, "--layout", str(tmp_path / "absent")], "No such file"),
        "layout is no text": ([source, target, "--layout", str(tmp_path / "noise")], "not UTF-8 text"),
        "layout is a folder": ([source, target, "--layout", str(tmp_path / "plain")], "not a layout file"),
        "nothing is left": ([source, target, "--exclude", "*"], "leave no tensor"),
        "near type": ([source, target, "--dtype-map", "float32=bf16"], "did you mean 'bfloat16'?"),
        "pattern fits nothing": ([source, target, "--include", "dnse*"], "no tensor fits the pattern 'dnse*'"),
        "bad size": ([source, target, "--shard-size", "many"], "'many' is not a size"),
        "bad type": ([source, target, "--dtype-map", "float32=float31"], "float31"),
        "parent is a file": ([source, str(exists / "x.h5")], "file is in the place of a folder"),
        "no permission": ([source, "/proc/x.h5"], "/proc/x.h5"),
    }


CASES = [
    *("not a checkpoint", "index is garbage", "folder without state"),
    *("no such source", "wrong kind", "target exists", "same file", "target is a folder", "missing shard", "truncated"),
    *("layout misses", "layout repeats", "layout broken", "layout missing", "pattern fits nothing", "bad size"),
    *("layout is no text", "layout is a folder", "nothing is left", "near type"),
    *("bad type", "parent is a file", "no permission"),
]


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gives_one_line_and_exit_2_and_writes_nothing(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, message = bad_input(tmp_path, source)[case]
    before = content_of(tmp_path)
    assert cli.tensorflow_to_h5(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("tensorflow-to-h5: error: ")
    assert message in error
    assert content_of(tmp_path) == before


def bad_input_from_h5(tmp_path: Path, source: str) -> dict[str, tuple[list[str], str]]:
    """Arguments of h5-to-tensorflow that must fail, and what the message must hold."""
    target, good = str(tmp_path / "out"), tmp_path / "good.h5"
    tf_h5_saver.save(good, {"dense/kernel": np.zeros(50), "step": 1})
    tf_h5_saver.save(tmp_path / "holed.h5", {"a": np.zeros(50), "b": np.ones(50)}, lambda name, size: ord(name) - 97)
    os.unlink(tmp_path / "holed-00001-of-00002.h5")
    tf_h5_saver.save(tmp_path / "cut.h5", {"x": np.zeros(1000)})
    os.truncate(tmp_path / "cut.h5", (tmp_path / "cut.h5").stat().st_size - 100)
    tf_h5_saver.save(tmp_path / "flipped.h5", {"x": np.ones(1000)})
    content = bytearray((tmp_path / "flipped.h5").read_bytes())
    content[content.index(np.ones(10).tobytes())] ^= 1
    (tmp_path / "flipped.h5").write_bytes(content)
    (tmp_path / "garbage.h5").write_bytes(b"no checkpoint at all" * 50)
    with h5py.File(tmp_path / "twice.h5", "w") as file:
        for name in ("a%2Fb", "a/b"):
            file[name] = np.zeros(3)
            file[name].attrs["__H5_TYPE__"] = "NumpyArrayH5Type"
    with BundleWriter(target + "-exists") as writer:
        writer.add("x", 1)
    (tmp_path / "misses").write_text("0 dense/*\n")
    (tmp_path / "repeats").write_text("0 *\n1 dense/*\n")
    return {
        "no such source": ([str(tmp_path / "none.h5"), target], "no such file"),
        "not a checkpoint": ([str(tmp_path / "garbage.h5"), target], "not a checkpoint"),
        "wrong kind": ([source, target], "tensorflow-to-h5 converts"),
        "target exists": ([str(good), target + "-exists"], "--force"),
        "same file": ([str(good), str(good)], "same checkpoint"),
        "target is a folder": ([str(good), str(tmp_path)], "a folder"),
        "missing shard": ([str(tmp_path / "holed.h5"), target], "holed-00001-of-00002.h5"),
        "truncated": ([str(tmp_path / "cut.h5"), target], "it was cut short"),
        "flipped": ([str(tmp_path / "flipped.h5"), str(tmp_path / "new" / "deep" / "out")], "its checksum is"),
        "duplicate names": ([str(tmp_path / "twice.h5"), target], "two tensors have the name 'a/b'"),
        "layout misses": ([str(good), target, "--layout", str(tmp_path / "misses")], "no rule for tensor"),
        "layout repeats": ([str(good), target, "--layout", str(tmp_path / "repeats")], "comes too late"),
        "parent is a file": ([str(good), str(good / "out")], "file is in the place of a folder"),
        "no permission": ([str(good), "/proc/out"], "does not allow files there"),
        "no jobs": ([str(good), target, "--jobs", "0"], "expected 1 or more"),
    }


def content_of(folder: Path) -> dict[Path, bytes | None]:
    """Every file of a folder with its bytes, and the folders in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


CASES_FROM_H5 = [
    *("no such source", "not a checkpoint", "wrong kind", "target exists", "same file", "target is a folder"),
    *("missing shard", "truncated", "flipped", "duplicate names", "layout misses", "layout repeats"),
    *("parent is a file", "no permission", "no jobs"),
]


@pytest.mark.parametrize("case", CASES_FROM_H5)
def test_bad_input_from_h5_gives_one_line_and_exit_2_and_writes_nothing(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, message = bad_input_from_h5(tmp_path, source)[case]
    before = content_of(tmp_path)
    assert cli.h5_to_tensorflow(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("h5-to-tensorflow: error: ")
    assert message in error
    assert content_of(tmp_path) == before


def test_missing_parents_are_made(tmp_path: Path, source: str) -> None:
    assert cli.tensorflow_to_h5([source, str(tmp_path / "one" / "two" / "x.h5"), "--quiet"]) == 0
    assert cli.h5_to_tensorflow([str(tmp_path / "one" / "two" / "x.h5"), str(tmp_path / "three" / "x"), "--quiet"]) == 0


def test_force_replaces_the_target(tmp_path: Path, source: str) -> None:
    tf_h5_saver.save(tmp_path / "x.h5", {"old": 1})
    assert cli.tensorflow_to_h5([source, str(tmp_path / "x.h5"), "--force", "--quiet"]) == 0
    assert "old" not in tf_h5_saver.load(tmp_path / "x.h5")


def test_the_inspector_lists_and_compares(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    h5 = str(tmp_path / "x.h5")
    assert cli.tensorflow_to_h5([source, h5, "--quiet"]) == 0
    assert cli.inspect([h5, "--verify"]) == 0
    text = capsys.readouterr().out
    assert "Cerebras HDF5, 5 tensors" in text and "published H5Saver.load" in text
    assert "dense/kernel  float32      [3, 4]               48 B\n" in text
    assert cli.inspect([source, "--diff", h5]) == 0
    assert capsys.readouterr().out == "the same 5 tensors, to the last bit\n"
    tf_h5_saver.update(h5, {"dense/kernel": VALUES["dense/kernel"] + np.eye(3, 4, dtype=np.float32) / 2})
    assert cli.inspect([source, "--diff", h5]) == 1
    assert capsys.readouterr().out == "dense/kernel: 3 of 12 elements differ, at most by 0.5\n"


def test_the_inspector_names_a_missing_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tf_h5_saver.save(tmp_path / "c.h5", {"a": np.zeros(50), "b": np.ones(50)}, lambda name, size: ord(name) - 97)
    os.unlink(tmp_path / "c-00001-of-00002.h5")
    assert cli.inspect([str(tmp_path / "c.h5")]) == 2
    printed = capsys.readouterr()
    assert "b  float64" in printed.out
    assert "c-00001-of-00002.h5: file 2 of 2 of this checkpoint" in printed.err


@pytest.mark.parametrize("command", [cli.tensorflow_to_h5, cli.h5_to_tensorflow, cli.inspect])
def test_every_command_has_a_version(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command(["--version"])
    assert end.value.code == 0 and __version__ in capsys.readouterr().out


def test_options_may_have_underscores_and_typos_get_a_suggestion(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.tensorflow_to_h5([source, str(tmp_path / "x.h5"), "--shard_size", "40B", "--quiet"]) == 0
    with pytest.raises(SystemExit):
        cli.tensorflow_to_h5([source, str(tmp_path / "y.h5"), "--sharrd-size", "40B"])
    assert "did you mean '--shard-size'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.tensorflow_to_h5([source, str(tmp_path / "y.h5"), "--compression", "gzp"])
    assert "did you mean 'gzip'?" in capsys.readouterr().err


def test_a_closed_output_pipe_causes_no_traceback(source: str) -> None:
    code = "from cerebras_tensorflow.saver import cli; raise SystemExit(cli.inspect())"
    with subprocess.Popen(
        [sys.executable, "-c", code, source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_layout_shows_the_shards_of_rules_in_order_and_of_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {f"layer_{k}/w": np.zeros(1000, np.float32) for k in range(4)} | {"step": np.int64(1)}
    tf_h5_saver.save(tmp_path / "c.h5", values)
    (tmp_path / "rules").write_text("0 layer_[0-1]/*\n1 layer_*  # overlaps, and comes second\n2 *\n")
    assert cli.inspect(["layout", str(tmp_path / "c.h5"), "--layout", str(tmp_path / "rules")]) == 0
    assert capsys.readouterr().out == (
        "shard 0: 8.0 kB, 2 tensors: layer_0/w ... layer_1/w\n"
        "shard 1: 8.0 kB, 2 tensors: layer_2/w ... layer_3/w\n"
        "shard 2: 8 B, 1 tensor: step\n"
    )
    assert cli.inspect(["layout", str(tmp_path / "c.h5"), "--shard-size", "10kB"]) == 0
    assert capsys.readouterr().out.count("shard ") == 2
    assert cli.inspect(["layout", str(tmp_path / "c.h5")]) == 0
    assert capsys.readouterr().out.startswith("target size of a file: 1.1 GB\nshard 0: 16.0 kB, 5 tensors")
    # A conversion by the same rules; `*` needs no tensor, any other rule does.
    (tmp_path / "rules").write_text("0 layer_0/*\n1 *\n2 layer_1/*\n")
    assert cli.inspect(["layout", str(tmp_path / "c.h5"), "--layout", str(tmp_path / "rules")]) == 2
    assert "rule '2 layer_1/*' comes too late: earlier rules fit all its tensors" in capsys.readouterr().err
    (tmp_path / "rules").write_text("0 layer_*\n1 step\n2 *\n")
    target = str(tmp_path / "back")
    assert cli.h5_to_tensorflow([str(tmp_path / "c.h5"), target, "--layout", str(tmp_path / "rules")]) == 0
    assert cli.h5_to_tensorflow([str(tmp_path / "c.h5"), target, "--shard-size", "auto", "--force"]) == 0
    assert cli.inspect([target, "--diff", str(tmp_path / "c.h5")]) == 0
