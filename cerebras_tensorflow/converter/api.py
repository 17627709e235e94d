"""Conversions from file to file, for programs; the command calls these functions."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cerebras_tensorflow.config import bounded_text
from cerebras_tensorflow.converter import releases
from cerebras_tensorflow.converter.configs import from_hf, matches, to_hf, warn_unmatched
from cerebras_tensorflow.converter.convert import Conversion
from cerebras_tensorflow.converter.hf_folder import CONFIG, HfFolderWriter
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import (
    CS,
    CS_OLD,
    HF,
    TF,
    Config,
    ConfigConversionError,
    Model,
    family,
    release,
)
from cerebras_tensorflow.converter.sharded import open_any, stem
from cerebras_tensorflow.converter.staging import staged
from cerebras_tensorflow.converter.torch_file import TorchReader
from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.files import read_regular
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.progress import Progress
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.saver.interface import TensorEntry, TensorReader, TensorWriter, as_bytes
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter
from cerebras_tensorflow.text import did_you_mean_file, one_line

logger = logging.getLogger(__name__)

_PIECE_BYTES = 4 << 20
_MAX_CONFIG_BYTES = 16 << 20
_SHARD_BYTES = 10 * 10**9
_CONVERTING, _VERIFYING = "Converting Checkpoint", "Verifying Checkpoint"


class UnsupportedConversionError(CerebrasError):
    """This model or pair of formats has no conversion."""


@dataclass(frozen=True)
class Options:
    """How to convert, and how to write the results.

    Attributes:
        output_dir: Folder or URL of the results; None writes each beside its input.
        export_h5_checkpoint: Write HDF5 instead of a torch file, or instead of a TensorFlow checkpoint for tf.
        export_safetensors: Write safetensors instead of a torch file, for hf only.
        drop_unmatched_keys: Leave out tensors that no rule covers, instead of raising an error.
        verify: Read the written checkpoint back and compare it.
        debug: Print the new name of each name.
        shows_progress: Show progress on stderr.
        hf_shard_bytes: For hf: write a folder with files of at most this size [B], and config.json. None: 10 GB if the
            source is cs-2.0 or later; otherwise write one file without a folder.
    """

    output_dir: str | None = None
    export_h5_checkpoint: bool = False
    export_safetensors: bool = False
    drop_unmatched_keys: bool = False
    verify: bool = False
    debug: bool = False
    shows_progress: bool = False
    hf_shard_bytes: int | None = None


def convert_config_from_file(
    model: str, src_fmt: str, tgt_fmt: str, config_file: str, options: Options | None = None
) -> str:
    """Convert only a model's config; return the path of the new one.

    Raises:
        UnsupportedConversionError: If there is no conversion for this model and pair of formats.
        ConfigConversionError: If the target cannot express a setting, or the file is not a config of the source format.
    """
    table, options = _table(model, src_fmt, tgt_fmt), options or Options()
    with staged("", config_file, options.output_dir) as places:
        options = replace(options, output_dir=places.output_dir)
        return places.publish(_convert_config(table, src_fmt, tgt_fmt, places.config, options))[0]


def _convert_config(table: Model, src_fmt: str, tgt_fmt: str, config_file: str, options: Options) -> str:
    if releases.is_between_releases(table, src_fmt, tgt_fmt):
        read_config(config_file, src_fmt)
        converted = releases.convert_config(table, _content(config_file, src_fmt), src_fmt, tgt_fmt)
    else:
        section = read_config(config_file, src_fmt)
        converted = convert_config(table.name, src_fmt, tgt_fmt, section)
        if options.debug:
            print("\n".join(matches(table, section, src_fmt, tgt_fmt)))
    return _write_config(options, config_file, tgt_fmt, converted)


def convert_config(model: str, src_fmt: str, tgt_fmt: str, config: Config) -> Config:
    """Return the content of the target's config file, from the model settings of the source's file.

    Raises:
        UnsupportedConversionError, ConfigConversionError: As `convert_config_from_file`.
    """
    table = _table(model, src_fmt, tgt_fmt)
    warn_unmatched(table, config, src_fmt)
    return from_hf(table, to_hf(table, config, src_fmt), tgt_fmt)


def convert_checkpoint_from_file(
    model: str, src_fmt: str, tgt_fmt: str, checkpoint_file: str, config_file: str, options: Options | None = None
) -> tuple[str, str]:
    """Convert a checkpoint and its config, one tensor at a time; return the paths of both.

    Writes nothing unless the config can be converted and a rule covers every tensor.

    Raises:
        UnsupportedConversionError, ConfigConversionError: As `convert_config_from_file`.
        UnmatchedKeysError: If the checkpoint has tensors that no rule covers.
        CheckpointError: If a tensor is missing, or the checkpoint cannot be read or written.
        CerebrasError: If `verify` finds a difference.
    """
    table, options = _table(model, src_fmt, tgt_fmt), options or Options()
    with staged(checkpoint_file, config_file, options.output_dir) as places:
        options = replace(options, output_dir=places.output_dir)
        paths = _convert_checkpoint(table, src_fmt, tgt_fmt, places.checkpoint, places.config, options)
        checkpoint, config = places.publish(*paths)
        return checkpoint, config


def _convert_checkpoint(
    table: Model, src_fmt: str, tgt_fmt: str, checkpoint_file: str, config_file: str, options: Options
) -> tuple[str, str]:
    logger.info("Loading config & checkpoint...")
    section = read_config(config_file, src_fmt)
    is_release = releases.is_between_releases(table, src_fmt, tgt_fmt)
    if is_release:
        converted = releases.convert_config(table, _content(config_file, src_fmt), src_fmt, tgt_fmt)
    else:
        warn_unmatched(table, section, src_fmt)
        values = to_hf(table, section, src_fmt)
        converted = from_hf(table, values, tgt_fmt)
        if options.debug:
            print("\n".join(matches(table, section, src_fmt, tgt_fmt)))
    path = _target_path(options, checkpoint_file, tgt_fmt)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open_any(checkpoint_file) as reader:
        if is_release and CS_OLD not in (src_fmt, tgt_fmt):
            _copy(options, table, reader, path, src_fmt, tgt_fmt)
        else:
            if is_release:
                conversion = releases.conversion(table, section, reader, src_fmt, tgt_fmt, options.drop_unmatched_keys)
            else:
                is_sparse = family(src_fmt) == CS and bool(_content(config_file, src_fmt).get("sparsity"))
                drop = options.drop_unmatched_keys
                conversion = Conversion(table, values, reader, src_fmt, tgt_fmt, drop, is_sparse)
                if is_sparse:
                    logger.info("Pruned weights become zero: the output checkpoint will be dense.")
            if family(tgt_fmt) == HF and (options.hf_shard_bytes or release(src_fmt) >= (2, 0)):
                return _write_folder(options, conversion, path, converted)
            _write(options, conversion, path, tgt_fmt, _writer(options, path, conversion, tgt_fmt))
    return path, _write_config(options, config_file, tgt_fmt, converted)


def read_config(path: str, source: str) -> Config:
    """Return the settings of a model from a config file: JSON for hf, the `model` section of YAML for the others.

    Raises:
        ConfigConversionError: If the file is missing or is not a config of the format.
    """
    content = _content(path, source)
    if family(source) != HF:
        content = _section(content)
    if not isinstance(content, dict):
        raise ConfigConversionError(f"{path}: no settings of a model; is it a config of {source}?")
    return content


def _section(content: Any) -> Any:
    """Return the settings of the model: the section `model`, or `trainer.init.model`, which releases since 2.3 use."""
    for key in ("trainer", "init") if isinstance(content, dict) and "model" not in content else ():
        content = content.get(key) if isinstance(content, dict) else None
    return content.get("model") if isinstance(content, dict) else None


def _content(path: str, source: str) -> Any:
    kind = "JSON" if family(source) == HF else "YAML"
    try:
        return bounded_text.parse(read_regular(path, _MAX_CONFIG_BYTES).decode("utf-8"), kind)
    except OSError as exc:
        meant = did_you_mean_file(path) if isinstance(exc, FileNotFoundError) else ""
        raise ConfigConversionError(f"cannot read the config {path!r}: {exc.strerror}{meant}") from exc
    except ValueError as exc:
        raise ConfigConversionError(f"{path} is not {kind}, as a config of {source} must be: {exc}") from exc


def _table(name: str, source: str, target: str) -> Model:
    if name not in MODELS:
        raise UnsupportedConversionError(f"no model {name!r}; known models: {', '.join(sorted(MODELS))}")
    model = MODELS[name]
    if not model.converts(source, target) and not releases.is_between_releases(model, source, target):
        raise UnsupportedConversionError(f"{name} cannot be converted from {source} to {target}")
    return model


def _target_path(options: Options, checkpoint: str, target: str) -> str:
    source, kind = stem(checkpoint), family(target)
    folder = local_path(options.output_dir or os.path.dirname(source))
    suffix = {
        HF: ".safetensors" if options.export_safetensors else ".bin",
        TF: ".hdf5" if options.export_h5_checkpoint else ".ckpt",
    }.get(kind, ".mdl")
    return os.path.join(folder, f"{os.path.basename(source)}_to_{target}{suffix}")


def _write_config(options: Options, source: str, target: str, config: Config) -> str:
    folder = Path(local_path(options.output_dir)) if options.output_dir else Path(source).parent
    folder.mkdir(parents=True, exist_ok=True)
    is_hf = family(target) == HF
    path = folder / f"{Path(source).stem}_to_{target}{'.json' if is_hf else '.yaml'}"
    text = json.dumps(config, indent=4) + "\n" if is_hf else yaml.safe_dump(config, indent=4)
    write_file(str(path), text.encode())
    return str(path)


def _write_folder(options: Options, conversion: Conversion, path: str, config: Config) -> tuple[str, str]:
    """Write a Hugging Face checkpoint as a folder; return the paths of its index and its config."""
    folder = os.path.splitext(path)[0]
    shard_bytes = options.hf_shard_bytes or _SHARD_BYTES
    writer = HfFolderWriter(folder, _entries(conversion), shard_bytes, options.export_safetensors, config)
    _write(options, conversion, folder, HF, writer)
    return os.path.join(folder, writer.index_name), os.path.join(folder, CONFIG)


def _write(options: Options, conversion: Conversion, path: str, target: str, opened: TensorWriter) -> None:
    logger.info("Saving...")
    is_wrapped = family(target) in (CS, CS_OLD)
    num_outputs = len(conversion.outputs)
    with _progress(options, _CONVERTING, num_outputs) as progress, opened as writer:
        for output in conversion.outputs:
            if options.debug:
                print(one_line(conversion.describe(output)))
            # A Model Zoo checkpoint is a nested dict; in HDF5 it is flattened.
            name = f"model.{output.name}" if is_wrapped and options.export_h5_checkpoint else output.name
            writer.add(name, conversion.value(output))
            progress.advance()
    if options.verify:
        prefix = "model." if is_wrapped else ""
        with _progress(options, _VERIFYING, num_outputs) as progress, open_any(path) as written:
            for output in conversion.outputs:
                _compare(path, written, prefix + output.name, conversion.value(output))
                progress.advance()
        logger.info("Verified %d tensors of %s", len(conversion.outputs), path)


def _writer(options: Options, path: str, conversion: Conversion, target: str) -> TensorWriter:
    kind = family(target)
    if kind == TF and not options.export_h5_checkpoint:
        return BundleWriter(path)
    if kind == HF and options.export_safetensors:
        return SafetensorsWriter(path, _entries(conversion))
    return _h5_writer(path) if options.export_h5_checkpoint else TorchWriter(path, None if kind == HF else "model")


def _entries(conversion: Conversion) -> dict[str, TensorEntry]:
    """Return the types and shapes of a conversion's results, in order."""
    entries = {}
    for output in conversion.outputs:
        dtype, shape = conversion.specification(output)
        entries[output.name] = TensorEntry(dtype, tuple(shape), int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return entries


def _h5_writer(path: str) -> TensorWriter:
    # Imported here because h5py is slow to load.
    from cerebras_tensorflow.saver.hdf5.writer import H5Writer

    return H5Writer(path)


def _copy(options: Options, table: Model, reader: TensorReader, path: str, source: str, target: str) -> None:
    """Copy everything in a checkpoint, including optimizer state, between releases since 1.7, with new names."""
    num_tensors = len(reader.names())
    values: Iterable[tuple[str, Any]]
    if isinstance(reader, TorchReader):
        tree = releases.renamed_tree(table, reader, source, target)
        is_h5 = options.export_h5_checkpoint
        renamed = functools.partial(releases.flattened, tree, reader, with_numbers=is_h5)
        if is_h5:
            writer, values = _h5_writer(path), renamed()
        else:
            # The leaves of the tree have the source's tensor names.
            writer, values = TorchWriter(path, tree=tree), ((name, reader.read(name)) for name in reader.names())
    else:
        renamed = functools.partial(releases.renamed, table, reader, source, target)
        writer, values = _h5_writer(path), renamed()
    with _progress(options, _CONVERTING, num_tensors) as progress, writer:
        for name, value in values:
            writer.add(name, value)
            progress.advance()
    if options.verify:
        with _progress(options, _VERIFYING, num_tensors) as progress, open_any(path) as written:
            for name, value in renamed():
                _compare(path, written, name, value)
                progress.advance()


def _progress(options: Options, title: str, num_tensors: int) -> Progress:
    return Progress(title, num_tensors, "tensors", is_shown=options.shows_progress)


def _compare(path: str, written: TensorReader, name: str, expected: np.ndarray[Any, Any]) -> None:
    stored = written.read(name)
    is_same = stored.dtype == expected.dtype and stored.shape == expected.shape
    if not is_same or not _same_bytes(as_bytes(stored), as_bytes(expected)):
        raise CerebrasError(f"{path}: {name} was read back with another value. Check the disk.")


def _same_bytes(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    """Compare piece by piece, because a comparison allocates an array of the same length."""
    pieces = range(0, first.size, _PIECE_BYTES)
    return all(np.array_equal(first[at : at + _PIECE_BYTES], second[at : at + _PIECE_BYTES]) for at in pieces)
