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
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from cerebras_tensorflow import files
from cerebras_tensorflow.compiler import signature
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.graph.micro_batches import Carried, Gradient, Mark, MicroBatches
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Note, Program, Residence, WeightSpec

logger = logging.getLogger(__name__)

VERSION = 18  # raise it when the compiler's output or the format changes, so that no run uses older Programs
_GRAPH, _MANIFEST, _SIGNATURE = "program.pb", "program.json", "program.sig"
_MAX_MANIFEST_BYTES, _MAX_GRAPH_BYTES, _MAX_SIGNATURE_BYTES = 1 << 30, 2 << 30, 1 << 10


def checksum(step: Step, mode: str, options: StreamingOptions) -> str:
    """Return the hash of a compilation's inputs, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    names = [list(step.roots), step.train_node, list(step.sources), step.global_step, list(step.weights)]
    cut = [
        step.micro_batches,
        step.num_csx,
        [asdict(mark) for mark in step.marks],
        list(step.trainable),
        step.is_shared,
    ]
    digest.update(json.dumps([VERSION, tf.__version__, mode, asdict(options), names, cut]).encode())
    digest.update(step.graph_def.SerializeToString(deterministic=True))
    return digest.hexdigest()


def folder(compile_dir: str | os.PathLike[str], key: str) -> Path:
    """Return the folder of the Program with the given checksum."""
    return Path(compile_dir) / f"tfcs_{key}"


def save(path: Path, program: Program, texts: dict[str, str]) -> bool:
    """Write a Program and its reports. The folder appears complete or not at all.

    A later writer replaces the folder of an earlier one, with the same Program. For a moment there is no folder then,
    so a reader may find none and compile.

    Args:
        path: From `folder`.
        program: The Program.
        texts: File name -> content of each report.

    Returns:
        Whether writing succeeded. If not, log a warning only: a run does not need the cache.
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
        "micro_batches": asdict(program.micro_batches) if program.micro_batches is not None else None,
        "owners": program.owners,
    }
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {_GRAPH: graph, _MANIFEST: json.dumps(manifest).encode()}
    contents[_SIGNATURE] = (signature.sign(path.name, graph, contents[_MANIFEST]) or "").encode()
    try:
        _write_folder(path, contents)
    except OSError as error:
        logger.warning("the compiled program cannot be saved in %s (%s); the next run compiles again", path, error)
        return False
    return True


def renew_texts(path: Path, texts: dict[str, str]) -> None:
    """Replace reports of a cached Program. Those of a folder that cannot be written stay as they are.

    Args:
        path: From `folder`.
        texts: File name -> content of each report.
    """
    for name, text in texts.items():
        try:
            files.write_text(path / name, text, is_durable=False)
        except OSError as error:
            logger.debug("%s could not be renewed: %s", path / name, error)


def _write_folder(path: Path, contents: dict[str, bytes]) -> None:
    """Replace a folder by one with these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.draft_folder(path) as draft:
        for name, content in contents.items():
            (draft / name).write_bytes(content)
        shutil.rmtree(path, ignore_errors=True)
        try:
            draft.rename(path)
        except OSError:  # another run has just written the same Program
            if not path.is_dir():
                raise


def load(path: Path) -> Program | None:
    """Return the Program in a folder; None if the folder has none, or if it cannot be read or trusted."""
    try:
        text = files.read_regular(path / _MANIFEST, _MAX_MANIFEST_BYTES)
        graph = files.read_regular(path / _GRAPH, _MAX_GRAPH_BYTES)
        signed = files.read_regular(path / _SIGNATURE, _MAX_SIGNATURE_BYTES).decode()
        if not signature.is_signed(signed, path.name, graph, text):
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
            micro_batches=_micro_batches(manifest["micro_batches"]) if manifest["micro_batches"] else None,
            owners=tuple(manifest["owners"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        logger.warning("the compiled program in %s cannot be read (%s); compiling again", path, error)
        return None


def _micro_batches(fields: dict[str, Any]) -> MicroBatches:
    gradients = [
        Gradient(
            **{
                **one,
                "mark": Mark(**one["mark"]),
                "totals": tuple(one["totals"]),
                "partials": tuple(one["partials"]),
                "waiting": tuple(one["waiting"]),
            }
        )
        for one in fields["gradients"]
    ]
    carried = tuple(Carried(**one) for one in fields["carried"])
    return MicroBatches(**{**fields, "gradients": tuple(gradients), "carried": carried})


def _spec(fields: dict[str, object]) -> WeightSpec:
    return WeightSpec(**{**fields, "shape": tuple(fields["shape"])})  # type: ignore[arg-type]
