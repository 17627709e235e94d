"""The commands tensorflow-to-h5, h5-to-tensorflow and cs-checkpoint. Exit code 2 means bad input."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from os.path import abspath, dirname, exists, isdir
from typing import TYPE_CHECKING

from cerebras_tensorflow import command_line
from cerebras_tensorflow.errors import CerebrasError, CheckpointError
from cerebras_tensorflow.locations import checkpoint_location, object_location
from cerebras_tensorflow.text import one_line, tell
from cerebras_tensorflow.units import parse_size

if TYPE_CHECKING:
    from cerebras_tensorflow.locations import ObjectLocation
    from cerebras_tensorflow.saver.convert import Selection
    from cerebras_tensorflow.saver.interface import TensorReader, TensorWriter

_BAD_INPUT = 2


def tensorflow_to_h5(argv: Sequence[str] | None = None) -> int:
    """Run the command tensorflow-to-h5."""
    parser = _parser("tensorflow-to-h5", "Convert Tensorflow Saver Checkpoint to Cerebras H5 Format")
    parser.add_argument("saver_path", help="Path to existing saver checkpoint")
    parser.add_argument("h5_path", help="Path to store converted h5 checkpoint")
    _add_options(parser)
    parser.add_argument(
        "--compression", choices=("none", "lz4", "gzip"), default="none", help="how to compress the values"
    )
    options = parser.parse_args(argv)
    return _guarded(parser.prog, lambda: _convert(parser.prog, options, options.saver_path, options.h5_path))


def h5_to_tensorflow(argv: Sequence[str] | None = None) -> int:
    """Run the command h5-to-tensorflow."""
    parser = _parser("h5-to-tensorflow", "Convert Cerebras H5 Checkpoint to Tensorflow Saver Format")
    parser.add_argument("h5_path", help="Path to existing h5 checkpoint")
    parser.add_argument("saver_path", help="Path to store converted saver checkpoint")
    _add_options(parser)
    parser.add_argument(
        "--accept-changed",
        action="store_true",
        help="also read a file that lost its index when another program changed it; without checksums",
    )
    options = parser.parse_args(argv)
    return _guarded(parser.prog, lambda: _convert(parser.prog, options, options.h5_path, options.saver_path))


def inspect(argv: Sequence[str] | None = None) -> int:
    """Run the command cs-checkpoint."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["sweep"]:
        return _sweep_command(words[1:])
    if words[:1] == ["layout"]:
        return _layout_command(words[1:])
    parser = _parser(
        "cs-checkpoint",
        "List the contents of a checkpoint of any kind, or compare two. The word `layout` before the path shows how a "
        "conversion would split a checkpoint into files; the word `sweep` removes what killed writers left behind.",
    )
    parser.add_argument("path", help="a TensorFlow prefix, an HDF5 or safetensors file, a model_dir, or a URL")
    parser.add_argument("--diff", metavar="OTHER", help="compare with another checkpoint; exit code 1 if they differ")
    parser.add_argument("--verify", action="store_true", help="compare every checksum")
    parser.add_argument("--accept-changed", action="store_true", help="also read an HDF5 file that lost its index")
    options = parser.parse_args(words)
    return _guarded(parser.prog, lambda: _inspect(options))


def _layout_command(words: list[str]) -> int:
    parser = _parser("cs-checkpoint layout", "Show how a conversion would split a checkpoint into files")
    parser.add_argument("path", help="a checkpoint of any kind")
    shards = parser.add_mutually_exclusive_group()
    shards.add_argument("--shard-size", metavar="SIZE", default="auto", help="as for the conversion; default: auto")
    shards.add_argument("--layout", metavar="FILE", help="as for the conversion")
    options = parser.parse_args(words)
    return _guarded(parser.prog, lambda: _layout(options))


def _layout(options: argparse.Namespace) -> int:
    from cerebras_tensorflow.saver import inspection, sharding
    from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
    from cerebras_tensorflow.saver.convert import Selection
    from cerebras_tensorflow.units import format_bytes

    with open_checkpoint(options.path) as reader:
        if options.layout:
            rules = sharding.read_layout(options.layout)
            rules.check(reader.names())
            lines = inspection.layout(reader, rules.shard)
        else:
            size = _shard_bytes(options, reader, Selection())
            print(f"target size of a file: {format_bytes(size)}")
            lines = inspection.layout(reader, sharding.by_size(size))
        for line in lines:
            print(line)
    return 0


def _sweep_command(words: list[str]) -> int:
    parser = _parser("cs-checkpoint sweep", "Remove what killed writers left behind: files, or objects")
    parser.add_argument("path", help="a model_dir; or the URL of a checkpoint, of a folder of them, or of a bucket")
    parser.add_argument(
        "--older-than",
        metavar="HOURS",
        type=float,
        default=24.0,
        help="keep younger objects and uploads, whose writer may be alive: longer than a save takes; default: 24",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the objects, and remove nothing")
    options = parser.parse_args(words)
    return _guarded(parser.prog, lambda: _sweep(options))


def _sweep(options: argparse.Namespace) -> int:
    from cerebras_tensorflow.units import format_bytes

    location = object_location(options.path)
    if not options.older_than >= 0:
        raise ValueError(f"--older-than {options.older_than:g}: expected hours, 0 or more")
    if location is None:
        from cerebras_tensorflow.saver.files.atomic import FolderLock
        from cerebras_tensorflow.saver.model_dir import retention

        folder = checkpoint_location(options.path)
        if options.dry_run or not isdir(folder):
            raise CheckpointError(f"{folder}: {'--dry-run is for URLs' if isdir(folder) else 'no such folder'}")
        with FolderLock(folder):
            for path in retention.clean_up(folder):
                print(one_line(f"removed {path}"))
        return 0
    from cerebras_tensorflow.saver.objects.sweep import sweep

    leftovers = sweep(location, options.older_than * 3600, options.dry_run)
    for item in leftovers:
        print(one_line(f"{'found' if options.dry_run else 'removed'} {item.key}: {format_bytes(item.size)}"))
    print(f"{len(leftovers)} objects, {format_bytes(sum(item.size for item in leftovers))}")
    if location.scheme == "s3":
        _sweep_uploads(location, options)
    return 0


def _sweep_uploads(location: ObjectLocation, options: argparse.Namespace) -> None:
    from cerebras_tensorflow.saver.objects.unfinished import sweep_uploads

    try:
        uploads = sweep_uploads(location, options.older_than * 3600, options.dry_run)
    except CheckpointError as exc:  # the objects are swept; a server or a role may not know these requests
        command_line.show(exc, command_line.warning_line("cs-checkpoint sweep", exc))
        return
    what = "found" if options.dry_run else "aborted"
    for upload in uploads:
        print(one_line(f"{what} the upload of {upload.key}"))
    if uploads:
        print(f"{what} {len(uploads)} uploads that were not completed")


def _inspect(options: argparse.Namespace) -> int:
    from cerebras_tensorflow.saver import inspection
    from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
    from cerebras_tensorflow.units import format_bytes

    with open_checkpoint(options.path, options.accept_changed) as reader:
        if options.diff is not None:
            count = 0
            with open_checkpoint(options.diff, options.accept_changed) as other:
                for line in inspection.differences(reader, other):
                    print(line)
                    count += 1
            if not count:
                print(f"the same {len(reader.names())} tensors, to the last bit")
            return 1 if count else 0
        for line in inspection.describe(reader):
            print(line)
        reader.check_complete()
        if options.verify:
            print(f"verified: {format_bytes(reader.verify())}")
    return 0


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    return command_line.Parser(prog=prog, description=description)


def _add_options(parser: argparse.ArgumentParser) -> None:
    shards = parser.add_mutually_exclusive_group()
    shards.add_argument(
        "--shard-size",
        metavar="SIZE",
        help="write files of at most this size, such as 5GB; auto: about 64 files of 1 to 32 GiB",
    )
    shards.add_argument(
        "--layout",
        metavar="FILE",
        help="split by the rules in FILE, one SHARD PATTERN per line; the first match applies, and * matches the rest",
    )
    parser.add_argument("--include", metavar="PATTERN", action="append", default=[], help="copy only such tensors")
    parser.add_argument("--exclude", metavar="PATTERN", action="append", default=[], help="leave out such tensors")
    parser.add_argument(
        "--dtype-map",
        metavar="FROM=TO",
        action="append",
        default=[],
        help="store tensors of a type, or with names that fit a pattern, as another type: float32=bfloat16",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        help="threads that copy or compress; default: 2",
    )
    parser.add_argument(
        "--sync",
        action="store_true",
        help="wait until the result is on disk, safe from a power failure; always done when a target is replaced",
    )
    parser.add_argument("--verify", action="store_true", help="read the result again and compare it")
    parser.add_argument("--force", action="store_true", help="replace an existing target")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _guarded(prog: str, run: Callable[[], int]) -> int:
    """Run a command and return its exit code; an error prints one line and gives exit code 2."""

    def reported() -> int:
        try:
            return run()
        except BrokenPipeError:
            raise
        except (CerebrasError, ValueError, OSError) as exc:
            command_line.show(exc, command_line.error_line(prog, " ".join(str(exc).split())))
            return _BAD_INPUT
        except KeyboardInterrupt:
            tell(f"{prog}: interrupted; nothing of the target was kept")
            raise

    return command_line.exit_code(prog, reported)


def _convert(prog: str, options: argparse.Namespace, source: str, target: str) -> int:
    from cerebras_tensorflow.progress import Progress
    from cerebras_tensorflow.saver import convert
    from cerebras_tensorflow.units import format_bytes, format_seconds

    start = time.monotonic()
    source, target = checkpoint_location(source), checkpoint_location(target)
    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs}: expected 1 or more")
    is_to_h5 = prog == "tensorflow-to-h5"
    selection = _selection(options)
    with convert.open_source(source, getattr(options, "accept_changed", False)) as reader:
        _check_kind(reader, is_to_h5)
        target = _target(target, is_to_h5)
        # Like `cp`, do not wait for the disk: the source survives a power failure. A replaced target would not.
        is_durable = convert.check_paths(reader.path, target, options.force) or options.sync
        total = convert.total_bytes(reader, selection)
        if object_location(target) is None:
            _check_space(target, total)
        with (
            Progress("Converting", total, is_shown=not options.quiet) as progress,
            _writer(options, reader, selection, target, is_durable, is_to_h5) as writer,
        ):
            report = convert.copy(reader, writer, selection, progress.advance, options.jobs)
        if options.verify:
            convert.verify(reader, target, selection)
    if not options.quiet:
        for name, reason in report.skipped.items():
            tell(f"{prog}: skipped {name}: {reason}")
        seconds = time.monotonic() - start
        rate = format_bytes(report.num_bytes / seconds)
        verified = ", verified" if options.verify else ""
        print(
            f"{target}: {report.num_tensors} tensors, {format_bytes(report.num_bytes)} in {format_seconds(seconds)} "
            f"({rate}/s){verified}"
        )
    return 0


def _writer(
    options: argparse.Namespace,
    reader: TensorReader,
    selection: Selection,
    target: str,
    is_durable: bool,
    is_to_h5: bool,
) -> TensorWriter:
    from cerebras_tensorflow.saver import convert, sharding

    shard_of = None
    if options.shard_size:
        shard_of = sharding.by_size(_shard_bytes(options, reader, selection))
    elif options.layout:
        rules = sharding.read_layout(options.layout)
        convert.check_layout(reader, selection, rules)
        shard_of = rules.shard
    location = object_location(target)
    if location is not None:
        from cerebras_tensorflow.saver.checkpoint_writer import open_writer

        return open_writer(target, shard_of, "none" if not is_to_h5 else options.compression)
    if not is_to_h5:
        from cerebras_tensorflow.saver.bundle.writer import BundleWriter

        return BundleWriter(target, shard_of, is_durable)
    if shard_of is None:
        from cerebras_tensorflow.saver.hdf5.writer import H5Writer

        return H5Writer(target, options.compression, options.jobs, is_durable)
    from cerebras_tensorflow.saver.hdf5.sharded import ShardedH5Writer

    return ShardedH5Writer(target, shard_of, options.compression, options.jobs, is_durable)


def _shard_bytes(options: argparse.Namespace, reader: TensorReader, selection: Selection) -> int:
    """Return the requested size of a shard, or the default for the size of the checkpoint [B]."""
    from cerebras_tensorflow.saver import convert, sharding

    if options.shard_size == "auto":
        return sharding.default_size(convert.total_bytes(reader, selection))
    return parse_size(options.shard_size)


def _selection(options: argparse.Namespace) -> Selection:
    from cerebras_tensorflow.saver.convert import Selection
    from cerebras_tensorflow.saver.hdf5.format import dtype_named

    dtype_map = []
    for rule in options.dtype_map:
        pattern, separator, name = rule.rpartition("=")
        if not separator or not pattern:
            raise ValueError(f"--dtype-map {rule}: expected FROM=TO, as in float32=bfloat16")
        dtype = dtype_named(name)
        if dtype.kind == "O":
            raise ValueError(f"--dtype-map {rule}: numbers cannot be stored as strings")
        dtype_map.append((pattern, dtype))
    return Selection(tuple(options.include), tuple(options.exclude), tuple(dtype_map))


def _check_kind(reader: TensorReader, is_to_h5: bool) -> None:
    from cerebras_tensorflow.saver.bundle.reader import BundleReader

    if object_location(reader.path):  # both commands convert from object storage
        return
    is_bundle = isinstance(reader, BundleReader)
    if is_to_h5 and not is_bundle:
        raise CheckpointError(f"{reader.path}: not a TensorFlow checkpoint; h5-to-tensorflow converts HDF5 files")
    if not is_to_h5 and is_bundle:
        raise CheckpointError(f"{reader.path}: a TensorFlow checkpoint already; tensorflow-to-h5 converts those")


def _target(target: str, is_to_h5: bool) -> str:
    if object_location(target):
        return target
    example = "model-ckpt-100.h5" if is_to_h5 else "model-ckpt-100"
    if isdir(target) or target.endswith("/"):
        raise CheckpointError(
            f"{target}: a folder; give the checkpoint's own name too, as in {target.rstrip('/')}/{example}"
        )
    return target.removesuffix(".index") if not is_to_h5 else target


def _check_space(target: str, num_bytes: int) -> None:
    from cerebras_tensorflow.units import format_bytes

    folder = dirname(abspath(target))
    while not exists(folder):
        folder = dirname(folder)
    disk = shutil.disk_usage(folder)
    # File systems such as /proc report no size; there, creating the file raises its own error.
    free = disk.free
    if disk.total and free < num_bytes:
        raise CheckpointError(
            f"{target}: needs {format_bytes(num_bytes)}, {folder} has {format_bytes(free)} free. Free some space or "
            "choose another folder."
        )
