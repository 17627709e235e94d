"""The command convert_checkpoint: list, convert-config, convert."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cerebras_tensorflow.converter import releases
from cerebras_tensorflow.converter.configs import ConfigConversionError, family, from_hf, to_hf
from cerebras_tensorflow.converter.convert import Conversion
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import CS, HF, TF, Config, Model
from cerebras_tensorflow.converter.sharded import open_any, stem
from cerebras_tensorflow.converter.torch_file import TorchWriter
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.saver.atomic import write_file
from cerebras_tensorflow.saver.interface import TensorEntry, TensorWriter
from cerebras_tensorflow.saver.safetensors_format import SafetensorsWriter
from cerebras_tensorflow.saver.tensor_bundle import BundleWriter

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit status.

    0: done; 1: the conversion failed, for the reason printed; 2: wrong options.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    options = _parser().parse_args(argv)
    if options.command == "list":
        return _list(options)
    if releases.is_supported(options.model, options.src_fmt, options.tgt_fmt):
        return _change_release(options)
    supported = _supported(options.model, options.src_fmt, options.tgt_fmt)
    if supported is not None:
        print(f"{supported}\n\nConversion failed.")
        return EXIT_FAILED
    model = MODELS[options.model]
    try:
        if options.command == "convert-config":
            config = read_config(Path(options.config_file), options.src_fmt)
            converted = from_hf(model, to_hf(model, config, options.src_fmt), options.tgt_fmt)
            print(f"Config saved to {_write_config(options, Path(options.config_file), converted)}")
            return 0
        return _convert(options, model)
    except ConfigConversionError as exc:
        print(f"ConfigConversionError: {exc}", file=sys.stderr)
    except CerebrasError as exc:
        print(f"convert_checkpoint: {type(exc).__name__}: {exc}", file=sys.stderr)
    print("\nConversion failed.")
    return EXIT_FAILED


def _change_release(options: argparse.Namespace) -> int:
    if options.command == "convert":
        print(
            f"A checkpoint of {options.src_fmt} loads in {options.tgt_fmt} as it is; only its config changes. Give "
            "convert-config and the params file.\n\nConversion failed."
        )
        return EXIT_FAILED
    path = Path(options.config_file)
    try:
        read_config(path, options.src_fmt)
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        converted = releases.convert_config(options.model, content, options.src_fmt)
    except ConfigConversionError as exc:
        print(f"ConfigConversionError: {exc}", file=sys.stderr)
        print("\nConversion failed.")
        return EXIT_FAILED
    print(f"Config saved to {_write_config(options, path, converted)}")
    return 0


def read_config(path: Path, source: str) -> Config:
    """Return the settings of a model from a config file: JSON for hf, the `model` section of YAML for the others.

    Raises:
        ConfigConversionError: If the file is missing or is not what the format says.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if family(source) == HF else yaml.safe_load(text)
    except OSError as exc:
        raise ConfigConversionError(f"cannot read the config {str(path)!r}: {exc.strerror}") from exc
    except (ValueError, yaml.YAMLError) as exc:
        kind = "JSON" if family(source) == HF else "YAML"
        raise ConfigConversionError(f"{path} is not {kind}, which a config of {source} is: {exc}") from exc
    if family(source) != HF:
        content = content.get("model") if isinstance(content, dict) else None
    if not isinstance(content, dict):
        raise ConfigConversionError(f"{path}: no settings of a model; is it a config of {source}?")
    return content


def _convert(options: argparse.Namespace, model: Model) -> int:
    logger.info("Loading config & checkpoint...")
    config = to_hf(model, read_config(Path(options.config), options.src_fmt), options.src_fmt)
    converted = from_hf(model, config, options.tgt_fmt)
    with open_any(options.checkpoint_file) as reader:
        conversion = Conversion(model, config, reader, options.src_fmt, options.tgt_fmt, options.drop_unmatched_keys)
        logger.info("Saving...")
        path = _target_path(options)
        with _writer(options, path, conversion) as writer:
            for name, value in conversion:
                writer.add(_stored_name(options, name), value)
        if options.verify:
            _verify(options, path, conversion)
    print(f"Checkpoint saved to {path}")
    print(f"Config saved to {_write_config(options, Path(options.config), converted)}")
    return 0


def _target_path(options: argparse.Namespace) -> str:
    source = stem(options.checkpoint_file)
    folder = options.output_dir or os.path.dirname(source)
    kind = family(options.tgt_fmt)
    suffix = {HF: ".safetensors" if options.export_safetensors else ".bin", CS: ".mdl", TF: ".ckpt"}[kind]
    return os.path.join(folder, f"{os.path.basename(source)}_to_{options.tgt_fmt}{suffix}")


def _write_config(options: argparse.Namespace, source: Path, config: dict[str, Any]) -> Path:
    folder = Path(options.output_dir) if options.output_dir else source.parent
    folder.mkdir(parents=True, exist_ok=True)
    is_hf = family(options.tgt_fmt) == HF
    path = folder / f"{source.stem}_to_{options.tgt_fmt}{'.json' if is_hf else '.yaml'}"
    text = json.dumps(config, indent=4) + "\n" if is_hf else yaml.safe_dump(config, indent=4)
    write_file(str(path), text.encode())
    return path


def _writer(options: argparse.Namespace, path: str, conversion: Conversion) -> TensorWriter:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    kind = family(options.tgt_fmt)
    if kind == TF:
        return BundleWriter(path)
    if kind == HF and options.export_safetensors:
        entries = {}
        for output in conversion.outputs:
            dtype, shape = conversion.specification(output)
            num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            entries[output.name] = TensorEntry(dtype, tuple(shape), num_bytes)
        return SafetensorsWriter(path, entries)
    if options.export_h5_checkpoint:
        # h5py takes a while to import; only here.
        from cerebras_tensorflow.saver.h5_writer import H5Writer

        return H5Writer(path)
    return TorchWriter(path, key="model" if kind == CS else None)


def _stored_name(options: argparse.Namespace, name: str) -> str:
    """HDF5 has the dict of a Model Zoo checkpoint flattened."""
    return f"model.{name}" if options.export_h5_checkpoint and family(options.tgt_fmt) == CS else name


def _verify(options: argparse.Namespace, path: str, conversion: Conversion) -> None:
    with open_any(path) as written:
        prefix = "model." if family(options.tgt_fmt) == CS else ""
        for output in conversion.outputs:
            found, expected = written.read(prefix + output.name), conversion.value(output)
            if found.dtype != expected.dtype or found.shape != expected.shape or found.tobytes() != expected.tobytes():
                raise CerebrasError(f"{path}: {output.name} is not what was written; is the disk sound?")
    logger.info("Verified %d tensors of %s", len(conversion.outputs), path)


def _supported(name: str, source: str, target: str) -> str | None:
    """None where a conversion is supported, else what is."""
    if name not in MODELS:
        return "The following models are supported:\n\n" + "\n".join(sorted(MODELS))
    formats = MODELS[name].formats
    if source in formats and target in formats and family(source) != family(target):
        return None
    return f"The following converters are supported:\n\n{_table([name])}"


def _list(options: argparse.Namespace) -> int:
    if options.model == "all":
        print(_table(sorted(MODELS), options.hide_notes))
    elif options.model.lower() in MODELS:
        print(_table([options.model.lower()], options.hide_notes))
    else:
        print(f"The model {options.model} is not supported.\n" + "\n".join(sorted(MODELS)))
        return EXIT_FAILED
    return 0


def _table(names: Sequence[str], hide_notes: bool = False) -> str:
    rows = [("model", "formats, each into each", "" if hide_notes else "notes")]
    for name in names:
        model = MODELS[name]
        notes = f"HF {model.hf_class} <-> CS {model.cs_class}"
        if TF in model.formats:
            notes += f" <-> TF reference_implementations/{model.name}"
        if not model.has_head:
            notes += "; the CS model's head is dropped, and left out on the way to CS"
        rows.append((name, ", ".join(model.formats), "" if hide_notes else notes))
    for name in releases.MODELS if len(names) > 1 else [name for name in names if name in releases.MODELS]:
        rows.append((name, f"{releases.OLD}, {releases.NEW}", "" if hide_notes else "convert-config only"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convert_checkpoint", description="Convert checkpoints and configs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | convert-config | convert")
    listing = commands.add_parser("list", help="models and formats")
    listing.add_argument("model", nargs="?", default="all")
    listing.add_argument("--hide-notes", action="store_true")
    config = commands.add_parser("convert-config", help="a model's config alone")
    config.add_argument("config_file", metavar="config-file")
    convert = commands.add_parser("convert", help="a checkpoint and its config")
    convert.add_argument("checkpoint_file", metavar="checkpoint-file")
    convert.add_argument("--config", required=True, help="the model's config")
    convert.add_argument("--drop-unmatched-keys", action="store_true", help="leave out tensors that no rule knows")
    output = convert.add_mutually_exclusive_group()
    output.add_argument("--export-h5-checkpoint", action="store_true", help="HDF5 instead of a torch file")
    output.add_argument("--export-safetensors", action="store_true", help="to hf: safetensors instead of a torch file")
    convert.add_argument("--verify", action="store_true", help="read the result back and compare")
    convert.add_argument("--no-progress-bar", action="store_true", help="accepted; there is none")
    for command in (config, convert):
        command.add_argument("--model", required=True)
        command.add_argument("--src-fmt", required=True, help="hf, cs-1.7, cs-1.8, cs-1.9 or tf")
        command.add_argument("--tgt-fmt", required=True, help="hf, cs-1.7, cs-1.8, cs-1.9 or tf")
        command.add_argument("--output-dir", help="default: beside the input")
    return parser
