#!/usr/bin/env python3
"""Turns texts, or a Hugging Face dataset, into HDF5 or TFRecord files of samples for the models here.

    python scripts/convert_dataset_to_hdf5.py --max_seq_length 128 --output_dir train --tokenizer tokenizer.json TEXT...
    python scripts/convert_dataset_to_hdf5.py --max_seq_length 128 --output_dir train --dataset FOLDER --split train
    python scripts/convert_dataset_to_hdf5.py --model bert --max_seq_length 128 --output_dir train TEXT...

These modules in reference_implementations describe the files: common/data/token_files.py, and for TFRecords
bert/records.py and t5/records.py. Nothing is downloaded. A dataset is a folder that `Dataset.save_to_disk` wrote, or
local files of JSON lines, CSV or Parquet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.bert import records as pairs
from reference_implementations.common.data.token_files import windows, write_examples, write_hdf5, write_tfrecords
from reference_implementations.t5 import records as spans

_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def convert_dataset_to_HDF5(
    dataset: Iterable[Mapping[str, Any]],
    output_dir: str,
    data_collator: Callable[[list[Mapping[str, Any]]], Mapping[str, Any]] | None = None,
    samples_per_file: int = 100_000,
) -> list[str]:
    """Write samples that are already tokens; return the paths.

    Args:
        dataset: Yields mappings with input_ids, labels and optionally attention_mask or input_mask, all of one length,
            as a Hugging Face dataset does.
        output_dir: Folder of the files.
        data_collator: A Hugging Face collator; called with a list of one sample, it returns such a mapping.
        samples_per_file: Samples in each file but the last.
    """
    return write_hdf5(_rows(dataset, data_collator), output_dir, samples_per_file)


def _rows(dataset: Iterable[Mapping[str, Any]], data_collator: Callable[..., Any] | None) -> Iterator[np.ndarray]:
    for sample in dataset:
        found = {
            name: np.asarray(value) for name, value in (data_collator([sample]) if data_collator else sample).items()
        }
        ids = found["input_ids"].reshape(-1)
        mask = found.get("input_mask", found.get("attention_mask", np.ones_like(ids))).reshape(-1)
        yield np.stack([ids, mask, found["labels"].reshape(-1)]).astype(np.int32)


def texts_of(options: argparse.Namespace) -> Iterator[str]:
    """Yield the texts that the options name, one document at a time."""
    if not options.dataset:
        for path in options.texts:
            yield Path(path).read_text(encoding="utf-8")
        return
    import datasets

    if Path(options.dataset).is_dir():
        found = datasets.load_from_disk(options.dataset)
    else:
        kind = _READERS[Path(options.dataset).suffix]
        found = datasets.load_dataset(kind, data_files={options.split: options.dataset}, split=options.split)
    if isinstance(found, datasets.DatasetDict):
        if options.split not in found:
            raise SettingsError(f"--split {options.split}: the dataset has {', '.join(found)}")
        found = found[options.split]
    if options.text_field not in found.column_names:
        raise SettingsError(f"--text_field {options.text_field}: the dataset has {', '.join(found.column_names)}")
    for row in found:
        yield row[options.text_field]


def tokens_of(texts: Iterable[str], tokenizer: str | None) -> Iterator[int]:
    """Yield the tokens of texts, each text followed by the end-of-text token; without a tokenizer, the bytes alone."""
    if tokenizer is None:
        for text in texts:
            yield from text.encode()
        return
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)
    end = encoder.token_to_id("<|endoftext|>")
    for text in texts:
        yield from encoder.encode(text).ids
        if end is not None:
            yield end


def bert_samples(texts: Iterable[str], options: argparse.Namespace) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield BERT's samples, with other masks and pairs for each duplicate."""
    tokens, encode = _encoder(options.tokenizer)
    vocabulary = pairs.vocabulary_of(tokens) if options.tokenizer else pairs.BYTES
    documents = [[encode(line) for line in text.splitlines()] for text in texts]
    for number in range(options.dupe_factor):
        yield from pairs.pair_records(
            documents,
            options.max_seq_length,
            options.max_predictions_per_seq,
            vocabulary,
            options.masked_lm_prob,
            options.seed + number,
        )


def t5_samples(texts: Iterable[str], options: argparse.Namespace) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield T5's samples."""
    sizes = spans.span_sizes(options.max_seq_length, options.noise_density, options.mean_span_length)
    tokens, encode = _encoder(options.tokenizer)
    vocabulary = spans.vocabulary_of(tokens) if options.tokenizer else spans.BYTES
    stream = (token for text in texts for token in encode(text))
    yield from spans.span_records(stream, sizes, vocabulary, options.seed)


def _encoder(path: str | None) -> tuple[dict[str, int], Callable[[str], list[int]]]:
    """Return a tokenizer's ids by token, and a function from text to tokens; without a tokenizer bytes are tokens."""
    if path is None:
        return {}, lambda text: list(text.encode())
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return tokenizer.get_vocab(), lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def write_samples(options: argparse.Namespace) -> list[str]:
    """Write the samples that the options ask for; return the paths."""
    texts = texts_of(options)
    if options.model in RECORDS:
        return write_examples(RECORDS[options.model](texts, options), options.output_dir, options.samples_per_file)
    samples = windows(tokens_of(texts, options.tokenizer), options.max_seq_length)
    write = write_tfrecords if options.format == "tfrecord" else write_hdf5
    return write(samples, options.output_dir, options.samples_per_file)


RECORDS: dict[str, Callable[[Iterable[str], argparse.Namespace], Iterator[Mapping[str, np.ndarray]]]] = {
    "bert": bert_samples,
    "t5": t5_samples,
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Convert texts or a Hugging Face dataset to files of samples.")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="text files; each is a document")
    parser.add_argument("--dataset", help="folder of Dataset.save_to_disk, or a .jsonl, .csv or .parquet file")
    parser.add_argument("--split", default="train", help="split of the dataset (default: train)")
    parser.add_argument("--text_field", default="text", help="column of the dataset (default: text)")
    parser.add_argument("--tokenizer", help="tokenizer.json; without it each byte is a token")
    parser.add_argument("--max_seq_length", type=int, required=True, help="tokens in a sample")
    parser.add_argument("--output_dir", required=True, help="folder of the files")
    parser.add_argument("--samples_per_file", type=int, default=100_000)
    parser.add_argument("--format", choices=("hdf5", "tfrecord"), help="default: hdf5; for bert and t5 tfrecord")
    parser.add_argument(
        "--model", choices=("gpt", *RECORDS), default="gpt", help="model that reads the samples (default: gpt)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of masks, pairs and spans (default: 0)")
    bert = parser.add_argument_group("bert")
    bert.add_argument(
        "--max_predictions_per_seq", type=int, default=20, help="most masked tokens in a sample (default: 20)"
    )
    bert.add_argument("--masked_lm_prob", type=float, default=0.15, help="share of masked tokens (default: 0.15)")
    bert.add_argument(
        "--dupe_factor", type=int, default=1, help="number of passes over the texts, each with other masks (default: 1)"
    )
    t5 = parser.add_argument_group("t5")
    t5.add_argument("--noise_density", type=float, default=0.15, help="share of missing tokens (default: 0.15)")
    t5.add_argument("--mean_span_length", type=float, default=3.0, help="tokens in a span (default: 3)")
    options = parser.parse_args()
    if bool(options.texts) == bool(options.dataset):
        parser.error("give either text files or --dataset")
    for path in (*options.texts, *filter(None, (options.dataset, options.tokenizer))):
        if not Path(path).exists():
            parser.error(f"no such file: {path}")
    if options.dataset and not Path(options.dataset).is_dir() and Path(options.dataset).suffix not in _READERS:
        parser.error(f"--dataset {options.dataset}: expected a folder, or a file that ends in {', '.join(_READERS)}")
    if min(options.max_seq_length, options.samples_per_file, options.dupe_factor) < 1:
        parser.error("--max_seq_length, --samples_per_file and --dupe_factor have to be at least 1")
    if options.model in RECORDS and options.format == "hdf5":
        parser.error(f"--format hdf5: samples of {options.model} are written as tfrecord")
    try:
        paths = write_samples(options)
    except SettingsError as exc:
        parser.error(str(exc))
    except ModuleNotFoundError as exc:
        parser.error(f"{exc}; install what the data scripts need: pip install '.[data]' in the repository")
    if not paths:
        parser.error("the texts are shorter than one sample")
    print(f"{len(paths)} file{'s' if len(paths) > 1 else ''} saved in {options.output_dir}")
    if options.model == "t5":
        sizes = spans.span_sizes(options.max_seq_length, options.noise_density, options.mean_span_length)
        print(f"max_sequence_length: {sizes.inputs}, max_target_length: {sizes.targets}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
