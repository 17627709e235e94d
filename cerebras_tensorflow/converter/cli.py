"""The command convert_checkpoint: list, convert-config, convert."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence

from cerebras_tensorflow import command_line
from cerebras_tensorflow.converter import api, listing, releases
from cerebras_tensorflow.converter.convert import UnmatchedKeysError
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.models.parts import CS_FORMATS
from cerebras_tensorflow.converter.rules import CS_OLD, HF, TF, ConfigConversionError
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.text import did_you_mean, near, one_line, tell
from cerebras_tensorflow.units import parse_size

EXIT_FAILED = 1
_PROGRAM = "convert_checkpoint"
_COMMANDS = ("list", "convert-config", "convert")
_FORMATS = (HF, CS_OLD, *CS_FORMATS, TF)
_AUTO, _CURRENT = "cs-auto", "cs-current"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status.

    0: done; 1: the conversion failed, and the reason is printed; 2: wrong options.
    """
    # The original tool logs in this format: WARNING:root:Key not matched: use_cache
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:root:%(message)s")
    words = sys.argv[1:] if argv is None else list(argv)
    return command_line.exit_code(_PROGRAM, lambda: _run(words), errors=(CerebrasError, ValueError, OSError))


def _run(words: list[str]) -> int:
    parser = _parser()
    if words and not words[0].startswith("-") and words[0] not in _COMMANDS:
        if name := near(words[0], _COMMANDS):
            tell(command_line.error_line(_PROGRAM, f"no command {words[0]!r}; did you mean {name!r}?"))
        print("Unrecognized command")
        parser.print_help()
        return EXIT_FAILED
    options = parser.parse_args(words)
    if options.command == "list":
        return _list(options)
    try:
        _convert(options)
        return 0
    except api.UnsupportedConversionError:
        _print_supported(options)
    except BrokenPipeError:
        raise
    except ConfigConversionError as exc:
        command_line.show(exc, f"ConfigConversionError: {exc}")
    except UnmatchedKeysError as exc:
        command_line.show(exc, f"AssertionError: {exc}")
    except (CerebrasError, ValueError, OSError) as exc:
        command_line.show(exc, command_line.error_line(_PROGRAM, exc))
    print("\nConversion failed.")
    return EXIT_FAILED


def _print_supported(options: argparse.Namespace) -> None:
    """Print the nearest model or format, and then the possible conversions."""
    if options.model not in MODELS:
        _print_near("model", options.model, MODELS)
        print(f"The following models are supported:\n\n{listing.models()}")
        return
    unknown = [name for name in (options.src_fmt, options.tgt_fmt) if name not in _FORMATS]
    for name in unknown:
        _print_near("format", name, _FORMATS)
    if not unknown:
        pair = f"cannot convert {options.model} from {options.src_fmt} to {options.tgt_fmt}"
        tell(command_line.error_line(_PROGRAM, pair))
    print(f"The following converters are supported:\n\n{listing.converters([options.model])}")


def _print_near(kind: str, word: str, known: Iterable[str]) -> None:
    tell(command_line.error_line(_PROGRAM, f"unknown {kind} {word!r}{did_you_mean(word, known)}"))


def _convert(options: argparse.Namespace) -> None:
    if options.command == "convert":
        _resolve_formats(options)
    formats = (options.model, options.src_fmt, options.tgt_fmt)
    if options.command == "convert-config":
        settings = api.Options(options.output_dir, debug=options.debug)
        print(f"Config saved to {api.convert_config_from_file(*formats, options.config_file, settings)}")
        return
    settings = api.Options(
        output_dir=options.output_dir,
        export_h5_checkpoint=options.export_h5_checkpoint,
        export_safetensors=options.export_safetensors,
        drop_unmatched_keys=options.drop_unmatched_keys,
        verify=options.verify,
        debug=options.debug,
        shows_progress=not options.no_progress_bar,
        hf_shard_bytes=parse_size(options.hf_shard_size) if options.hf_shard_size else None,
    )
    saved = api.convert_checkpoint_from_file(*formats, options.checkpoint_file, options.config, settings)
    print(f"Checkpoint saved to {saved[0]}")
    print(f"Config saved to {saved[1]}")


def _resolve_formats(options: argparse.Namespace) -> None:
    """Replace cs-auto by the release that wrote the checkpoint, and cs-current by the newest one."""
    if options.src_fmt == _AUTO:
        with open_any(options.checkpoint_file) as reader:
            options.src_fmt = releases.written_by(reader)
        print(f"{_AUTO} is {options.src_fmt}")
    if options.tgt_fmt == _CURRENT:
        options.tgt_fmt = CS_FORMATS[-1]


def _list(options: argparse.Namespace) -> int:
    name = options.model.lower()
    if name == "all":
        print(listing.converters(sorted(MODELS), options.hide_notes))
    elif name in MODELS:
        print(listing.converters([name], options.hide_notes))
    else:
        meant = near(name, MODELS)
        hint = f" Did you mean {meant!r}?" if meant else ""
        print(one_line(f"The model {options.model} is not supported.{hint}") + f"\n{listing.models()}")
        return EXIT_FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(prog=_PROGRAM, description="Convert checkpoints and configs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar=" | ".join(_COMMANDS))
    listed = commands.add_parser("list", help="list models and formats")
    listed.add_argument("model", nargs="?", default="all")
    listed.add_argument("--hide-notes", action="store_true", help="hide the column of classes and caveats")
    # conflict_handler: these --debug options replace the common one. As in the original tool, they print names.
    config = commands.add_parser("convert-config", help="convert only a model's config", conflict_handler="resolve")
    config.add_argument("config_file", metavar="config-file")
    convert = commands.add_parser("convert", help="convert a checkpoint and its config", conflict_handler="resolve")
    convert.add_argument("checkpoint_file", metavar="checkpoint-file")
    convert.add_argument("--config", required=True, help="the model's config")
    convert.add_argument("--drop-unmatched-keys", action="store_true", help="leave out tensors that no rule covers")
    output = convert.add_mutually_exclusive_group()
    output.add_argument("--export-h5-checkpoint", action="store_true", help="write HDF5 instead of a torch file")
    output.add_argument(
        "--export-safetensors", action="store_true", help="to hf: write safetensors instead of a torch file"
    )
    convert.add_argument(
        "--hf-shard-size",
        metavar="SIZE",
        help="to hf: write a folder with files of at most this size; default: 10GB from cs-2.0 or later, else one file",
    )
    convert.add_argument("--verify", action="store_true", help="read the result back and compare it")
    convert.add_argument("--no-progress-bar", action="store_true", help="do not show progress")
    formats = f"{HF}, {CS_OLD} to {CS_FORMATS[-1]} or {TF}; `list` shows the formats of a model"
    for command in (config, convert):
        command.add_argument("--model", required=True, help="the model; `list` shows all models")
        is_whole = command is convert
        source = f"{formats}; {_AUTO}: the release that the checkpoint names (since cs-2.2)" if is_whole else formats
        target = f"{formats}; {_CURRENT}: {CS_FORMATS[-1]}" if is_whole else formats
        command.add_argument("--src-fmt", required=True, help=source)
        command.add_argument("--tgt-fmt", required=True, help=target)
        command.add_argument("--output-dir", help="folder of the results; default: each beside its input")
        command.add_argument("--debug", action="store_true", help="print the new name of each name")
    return parser
