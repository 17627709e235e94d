"""HDF5 and TFRecord files of tokens are written and read, in an order that a run can resume at any step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import MissingDataError, SettingsError
from reference_implementations.common.data.token_files import windows, write_hdf5, write_tfrecords
from reference_implementations.common.data.tokens import token_dataset
from reference_implementations.common.text_settings import EvalTextInput, TextInput, TrainTextInput

ROOT = Path(__file__).parents[5]
DATA = ROOT / "reference_implementations" / "data"
SEQUENCE = 4
WRITERS = {"hdf5": write_hdf5, "tfrecord": write_tfrecords}


@pytest.fixture(params=sorted(WRITERS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Twenty samples in three files; sample k begins with token 4 k."""
    paths = WRITERS[request.param](windows(range(81), SEQUENCE), str(tmp_path / "data"), samples_per_file=8)
    assert len(paths) == 3
    return str(tmp_path / "data")


def read(settings: TextInput, limit: int = 1000, input_context: Any = None) -> list[tuple[np.ndarray, ...]]:
    samples: list[tuple[np.ndarray, ...]] = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(token_dataset(settings, input_context))
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        while len(samples) < limit:
            try:
                samples.append(tuple(session.run([features["input_ids"], labels, features["input_mask"]])))
            except tf.errors.OutOfRangeError:
                break
    return samples


def first_tokens(samples: list[tuple[np.ndarray, ...]]) -> list[int]:
    return [int(row[0]) for ids, *_ in samples for row in ids]


def test_every_sample_comes_once_with_the_next_tokens_as_labels(folder: str) -> None:
    samples = read(EvalTextInput(data_dir=folder, batch_size=5, max_sequence_length=SEQUENCE))
    assert first_tokens(samples) == list(range(0, 80, SEQUENCE))
    for ids, labels, mask in samples:
        assert ids.dtype == labels.dtype == mask.dtype == np.int32
        np.testing.assert_array_equal(labels, ids + 1)
        assert np.all(mask == 1)


@pytest.mark.parametrize("skip", [1, 3, 7, 20])
def test_skipping_steps_continues_the_same_samples(folder: str, skip: int) -> None:
    common: dict[str, Any] = {"data_dir": folder, "batch_size": 3, "max_sequence_length": SEQUENCE, "shuffle_seed": 5}
    whole = first_tokens(read(TrainTextInput(**common), limit=skip + 6))
    resumed = first_tokens(read(TrainTextInput(**common, skip_steps=skip), limit=6))
    assert resumed == whole[3 * skip :]
    assert whole[:20] != sorted(whole[:20])


def test_tasks_share_the_batches_and_none_is_read_twice(folder: str) -> None:
    settings = TrainTextInput(data_dir=folder, batch_size=5, max_sequence_length=SEQUENCE, repeat=False)
    whole = [ids.tolist() for ids, *_ in read(settings)]
    shares = []
    for task in range(3):
        context = SimpleNamespace(num_input_pipelines=3, input_pipeline_id=task)
        shares.append([ids.tolist() for ids, *_ in read(settings, input_context=context)])
    assert [share for task in range(3) for share in shares[task]] == [*whole[0::3], *whole[1::3], *whole[2::3]]


def test_the_last_window_is_padded_and_masked() -> None:
    *_, last = windows(range(7), SEQUENCE)
    np.testing.assert_array_equal(last, [[4, 5, 0, 0], [1, 1, 0, 0], [5, 6, 0, 0]])
    assert list(windows([1], SEQUENCE)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_sequence_length": 5}, "has shape .*expected .*max_sequence_length = 5"),
        ({"batch_size": 21}, "holds 20 samples, less than one batch of 21"),
        ({"data_processor": "GptTfRecordsProcessor"}, r"no \*\.tfrecord\* files"),
        ({"data_dir": "nowhere"}, r"'nowhere': no \*\.h5 or \*\.hdf5 or \*\.tfrecord\* files"),
    ],
)
def test_unreadable_data_is_an_error(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_hdf5(windows(range(81), SEQUENCE), str(tmp_path))
    settings = {"data_dir": str(tmp_path), "batch_size": 5, "max_sequence_length": SEQUENCE} | changes
    with pytest.raises(SettingsError, match=message):
        token_dataset(EvalTextInput(**settings))


def test_the_error_for_missing_files_has_the_element_spec(tmp_path: Path) -> None:
    settings = EvalTextInput(data_dir=str(tmp_path), batch_size=5, max_sequence_length=SEQUENCE)
    with pytest.raises(MissingDataError) as caught:
        token_dataset(settings)
    write_hdf5(windows(range(81), SEQUENCE), str(tmp_path))
    assert caught.value.element_spec == token_dataset(settings).element_spec


@pytest.mark.parametrize("kind", WRITERS)
def test_writing_fewer_files_removes_older_ones(kind: str, tmp_path: Path) -> None:
    (tmp_path / "data-mine.h5").touch()
    for num_tokens, count in ((81, 5), (33, 2)):
        paths = WRITERS[kind](windows(range(num_tokens), SEQUENCE), str(tmp_path), 4)
        assert len(paths) == count
        assert sorted(map(str, tmp_path.glob("data-0*"))) == paths
    assert (tmp_path / "data-mine.h5").exists()


def test_files_of_both_kinds_need_data_processor(tmp_path: Path) -> None:
    for write in WRITERS.values():
        write(windows(range(81), SEQUENCE), str(tmp_path))
    settings: dict[str, Any] = {"data_dir": str(tmp_path), "batch_size": 5, "max_sequence_length": SEQUENCE}
    with pytest.raises(SettingsError, match="files of both kinds; choose one with data_processor"):
        token_dataset(EvalTextInput(**settings))
    assert len(read(EvalTextInput(**settings, data_processor="GptTfRecordsProcessor"))) == 4


def script(name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / name), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_converted_bytes_equal_the_text(tmp_path: Path) -> None:
    text = DATA / "paradise_lost_eval.txt"
    words = ("--max_seq_length", "64", "--samples_per_file", "100", "--output_dir", str(tmp_path / "out"), str(text))
    assert script("convert_dataset_to_hdf5.py", *words) == f"5 files saved in {tmp_path / 'out'}\n"
    samples = read(EvalTextInput(data_dir=str(tmp_path / "out"), batch_size=8, max_sequence_length=64))
    ids = np.concatenate([batch for batch, *_ in samples]).reshape(-1)
    np.testing.assert_array_equal(ids, np.frombuffer(text.read_bytes(), np.uint8)[: len(ids)])
    assert len(ids) > 27_000


def test_a_trained_tokenizer_decodes_to_the_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    text = DATA / "paradise_lost_eval.txt"
    script("train_tokenizer.py", "--vocab_size", "600", "--output", str(path), str(text))
    out = tmp_path / "out"
    script(
        "convert_dataset_to_hdf5.py",
        "--max_seq_length",
        "32",
        "--output_dir",
        str(out),
        "--tokenizer",
        str(path),
        str(text),
    )
    samples = read(EvalTextInput(data_dir=str(out), batch_size=1, max_sequence_length=32))
    tokens = np.concatenate([ids[mask == 1] for ids, _, mask in samples])
    decoded = tokenizers.Tokenizer.from_file(str(path)).decode(tokens.tolist())
    assert decoded == text.read_text()
    assert len(tokens) < 0.6 * len(decoded)


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["folder", "jsonl"])
def test_a_hugging_face_dataset_becomes_hdf5(kind: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    lines = ["Of Mans First Disobedience", "and the Fruit", "Of that Forbidden Tree"]
    dataset = datasets.Dataset.from_dict({"line": lines})
    source = tmp_path / ("lines" if kind == "folder" else "lines.jsonl")
    if kind == "folder":
        datasets.DatasetDict({"train": dataset}).save_to_disk(str(source))
    else:
        dataset.to_json(str(source))
    words = ("--text_field", "line", "--max_seq_length", "8", "--output_dir", str(tmp_path / "out"))
    script("convert_dataset_to_hdf5.py", "--dataset", str(source), *words)
    samples = read(EvalTextInput(data_dir=str(tmp_path / "out"), batch_size=1, max_sequence_length=8))
    text = bytes(np.concatenate([ids[mask == 1] for ids, _, mask in samples]).astype(np.uint8).tolist())
    assert text == "".join(lines).encode()[:-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_tokenizer.py", ("--vocab_size", "300", "--output", "t.json")),
        ("convert_dataset_to_hdf5.py", ("--max_seq_length", "8", "--output_dir", "out", "--tokenizer", __file__)),
    ],
)
def test_the_error_of_a_missing_library_says_how_to_install_it(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    # The error of python if the library is not installed.
    (tmp_path / "tokenizers.py").write_text("raise ModuleNotFoundError(\"No module named 'tokenizers'\")\n")
    command = [sys.executable, str(ROOT / "scripts" / name), *words, str(DATA / "paradise_lost_eval.txt")]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environ)
    assert result.returncode == 2
    assert "error: No module named 'tokenizers'; install what the data scripts need: pip install '.[data]'" in (
        result.stderr
    )
