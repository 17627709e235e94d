"""What a params file says about a run, as far as a plan depends on it: mode, weight store, memory budget, batch.

Sections `csconfig` and `runconfig` are read as a run reads them; options of the command line come before both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError, MissingDataError, SettingsError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.user_functions import call_with
from cerebras_tensorflow.planner.shapes import Shape, ShapeInputs

MODES = {"train": "train", "train_and_eval": "train", "eval": "eval", "eval_all": "eval", "predict": "infer"}
"""What a run's mode plans."""


def cs_config(params: Mapping[str, Any], given: Mapping[str, Any]) -> CSConfig:
    """Return the settings of the run that a params file describes.

    Args:
        params: The file's content.
        given: Options of the command line, fields of CSConfig; None: not given.

    Raises:
        SettingsError: If a section is none, has an unknown key, or a value is out of range.
    """
    section = _section(params, "csconfig")
    known = [field.name for field in dataclasses.fields(CSConfig)]
    for key in section:
        if key not in known:
            raise SettingsError(f"unknown csconfig key {key!r}; known: {', '.join(known)}")
    budget = _section(params, "runconfig").get("memory_budget")
    before = {"memory_budget": budget} if budget else {}
    return CSConfig(**section | before | {name: value for name, value in given.items() if value is not None})


def planned_mode(params: Mapping[str, Any], option: str | None) -> str:
    """Return "train", "eval" or "infer": what the option, else `runconfig`, asks for; training by default.

    Raises:
        SettingsError: If `runconfig` names a mode that is none.
    """
    mode = option or _section(params, "runconfig").get("mode", "train")
    if mode not in MODES:
        raise SettingsError(f"runconfig key 'mode' is {mode!r}; expected one of {', '.join(MODES)}")
    return MODES[mode]


def store_folder(option: str | None, settings: CSConfig) -> Path:
    """Return an existing folder on the disk of the weight store: the option, or near csconfig's weight_store_dir.

    Raises:
        SettingsError: If the option is no folder.
    """
    if option is not None:
        if not Path(option).is_dir():
            raise SettingsError(f"--store_dir {option} is not a folder")
        return Path(option)
    folder = Path(settings.weight_store_dir or ".")
    while not folder.is_dir():  # the run will make it
        folder = folder.parent
    return folder


def batch_of(input_fn: Callable[..., Any], params: Any, mode: str, config: Any) -> ShapeInputs:
    """Return the batch that an input_fn would yield; nothing is read.

    Raises:
        SettingsError: If it needs data that is not there, or does not return a Dataset of known shapes.
    """
    offered = {"params": params, "mode": mode, "config": config, "input_context": None}
    try:
        with tf.Graph().as_default():
            spec = call_with(input_fn, offered).element_spec
    except MissingDataError as error:
        if error.element_spec is None:
            raise no_input(params, mode, f"the model's input_fn has no batch without its data ({error})") from error
        spec = error.element_spec
    except (CerebrasError, OSError, ValueError, AttributeError, tf.errors.OpError) as error:
        raise no_input(params, mode, f"the model's input_fn has no batch without its data ({error})") from error
    features, labels = spec if isinstance(spec, tuple) else (spec, None)
    try:
        return ShapeInputs(_shapes(features), _shapes(labels))
    except (TypeError, ValueError, AttributeError) as error:
        raise no_input(params, mode, f"the input_fn's batch {spec} is not one of known shapes") from error


def no_input(params: Any, mode: str, reason: str) -> SettingsError:
    """Return the error that says what to pass, with the batch's sizes where the file has them."""
    section = params.get("train_input" if mode == "train" else "eval_input") if isinstance(params, Mapping) else None
    sizes = [section.get(name) for name in ("batch_size", "max_sequence_length")] if isinstance(section, dict) else []
    dims = "x".join(map(str, sizes)) if sizes and all(isinstance(size, int) for size in sizes) else "8x2048"
    words = f"--input input_ids=int32:{dims} --input input_mask=int32:{dims} --labels int32:{dims}"
    return SettingsError(f"no input is given, and {reason}; describe each tensor of the batch, as in {words}")


def _section(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = params.get(name) or {}
    if not isinstance(section, dict):
        raise SettingsError(f"section {name!r} must hold keys and values, found {section!r}")
    return section


def _shapes(spec: Any) -> list[Shape]:
    if spec is None:
        return []
    named = spec.items() if isinstance(spec, dict) else ((None, spec),)
    return [Shape(name, tensor.dtype.name, tuple(tensor.shape.as_list())) for name, tensor in named]
