"""Compiled Programs on disk, in `<compile_dir>/tfcs_<checksum>/`. The checksum covers all inputs of the compilation.

A Program is a graph, and a graph can read and write files. So only Programs that this user has signed are used (see
signature.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import tensorflow as tf
from google.protobuf.message import DecodeError

from cerebras_tensorflow import files
from cerebras_tensorflow.compiler import signature
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Note, Program, Residence, WeightSpec

logger = logging.getLogger(__name__)

VERSION = 10  # raise it when the compiler's output or the format changes, so that older Programs are not used
_GRAPH, _MANIFEST, _SIGNATURE = "program.pb", "program.json", "program.sig"
_MAX_MANIFEST_BYTES = 1 << 30


def checksum(step: Step, mode: str, options: StreamingOptions) -> str:
    """Return the hash of a compilation's inputs, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    names = [list(step.roots), step.train_node, list(step.sources), step.global_step, list(step.weights)]
    digest.update(json.dumps([VERSION, tf.__version__, mode, asdict(options), names]).encode())
    digest.update(step.graph_def.SerializeToString(deterministic=True))
    return digest.hexdigest()


def folder(compile_dir: str | os.PathLike[str], key: str) -> Path:
    """Return the folder of the Program with the given checksum."""
    return Path(compile_dir) / f"tfcs_{key}"


def save(path: Path, program: Program, texts: dict[str, str]) -> None:
    """Write a Program and its reports. The folder appears complete or not at all. Of two writers the first wins.

    Args:
        path: From `folder`.
        program: The Program.
        texts: File name -> content of each report.
    """
    graph = program.graph_def.SerializeToString()
    manifest = {
        "version": VERSION,
        "graph_sha256": hashlib.sha256(graph).hexdigest(),
        "mode": program.mode,
        "step_node": program.step_node,
        "streamed": [asdict(spec) for spec in program.streamed],
        "spilled": [asdict(spec) for spec in program.spilled],
        "resident": [asdict(spec) for spec in program.resident],
        "events": [asdict(event) for event in program.events],
        "window_bytes": program.window_bytes,
        "value_curve": program.value_curve,
        "held_curve": program.held_curve,
        "overhead_bytes": program.overhead_bytes,
        "residence": program.residence.value,
        "order": program.order,
        "notes": [asdict(note) for note in program.notes],
    }
    partial = path.with_name(f"{path.name}.partial.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / _GRAPH).write_bytes(graph)
    content = json.dumps(manifest).encode()
    (partial / _MANIFEST).write_bytes(content)
    (partial / _SIGNATURE).write_text(signature.sign(path.name, graph, content) or "")
    for name, text in texts.items():
        (partial / name).write_text(text, encoding="utf-8")
    shutil.rmtree(path, ignore_errors=True)
    try:
        partial.rename(path)
    except OSError:  # another run has just written the same Program
        if not path.is_dir():
            raise
        shutil.rmtree(partial)


def load(path: Path) -> Program | None:
    """Return the Program in a folder; None if the folder has none, or if it cannot be read or trusted."""
    try:
        text = files.read_regular(path / _MANIFEST, _MAX_MANIFEST_BYTES)
        graph = (path / _GRAPH).read_bytes()
        if not signature.is_signed((path / _SIGNATURE).read_text(), path.name, graph, text):
            raise ValueError("it is not signed by this user, or was changed after signing")
        manifest = json.loads(text)
        if manifest["version"] != VERSION:
            raise ValueError(f"it has format {manifest['version']}, expected {VERSION}")
        if hashlib.sha256(graph).hexdigest() != manifest["graph_sha256"]:
            raise ValueError(f"{_GRAPH} does not match its checksum")
        graph_def = GraphDef.FromString(graph)
        return Program(
            mode=manifest["mode"],
            graph_def=graph_def,
            step_node=manifest["step_node"],
            streamed=tuple(_spec(fields) for fields in manifest["streamed"]),
            spilled=tuple(_spec(fields) for fields in manifest["spilled"]),
            resident=tuple(_spec(fields) for fields in manifest["resident"]),
            events=tuple(
                Event(**{**fields, "finishers": tuple((node, place) for node, place in fields["finishers"])})
                for fields in manifest["events"]
            ),
            window_bytes=manifest["window_bytes"],
            value_curve=tuple(manifest["value_curve"]),
            held_curve=tuple(manifest["held_curve"]),
            overhead_bytes=manifest["overhead_bytes"],
            residence=Residence(manifest["residence"]),
            order=tuple(manifest["order"]),
            notes=tuple(Note(**{**fields, "ops": tuple(fields["ops"])}) for fields in manifest["notes"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        logger.warning("the compiled program in %s cannot be read (%s); compiling again", path, error)
        return None


def _spec(fields: dict[str, object]) -> WeightSpec:
    return WeightSpec(**{**fields, "shape": tuple(fields["shape"])})  # type: ignore[arg-type]
