"""Reads the part of a params file that a plan needs: mode, weight store, memory budget, batch.

It reads the sections `csconfig` and `runconfig` as a run does. Command-line options override both.
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
"""Mode of a run -> mode of model_fn that is planned."""

_BOTH = ("memory_budget", "micro_batch_size", "num_csx", "allow_oversize")  # also keys of runconfig, which overrides


def cs_config(params: Mapping[str, Any], given: Mapping[str, Any]) -> CSConfig:
    """Return the settings of the run that a params file describes.

    Args:
        params: The file's content.
        given: Field of CSConfig -> its command-line option, None if not given.

    Raises:
        SettingsError: If a section is not a mapping, a key is unknown, or a value is out of range.
    """
    section = _section(params, "csconfig")
    known = [field.name for field in dataclasses.fields(CSConfig)]
    for key in section:
        if key not in known:
            raise SettingsError(f"unknown csconfig key {key!r}; known: {', '.join(known)}")
    runconfig = _section(params, "runconfig")
    before = {name: runconfig[name] for name in _BOTH if runconfig.get(name)}
    return CSConfig(**section | before | {name: value for name, value in given.items() if value is not None})


def with_micro_batch_size(params: Any, size: int | str | None) -> Any:
    """Return params whose input sections say the micro-batch size of an option. None: unchanged."""
    if size is None or not isinstance(params, Mapping):
        return params
    sections = [name for name in ("train_input", "eval_input", "predict_input") if isinstance(params.get(name), dict)]
    return {**params, **{name: {**params[name], "micro_batch_size": size} for name in sections}}


def planned_mode(params: Mapping[str, Any], option: str | None) -> str:
    """Return "train", "eval" or "infer", from the option, else from `runconfig`, else "train".

    Raises:
        SettingsError: If `runconfig` names an unknown mode.
    """
    mode = option or _section(params, "runconfig").get("mode", "train")
    if mode not in MODES:
        raise SettingsError(f"runconfig key 'mode' is {mode!r}; expected one of {', '.join(MODES)}")
    return MODES[mode]


def store_folder(option: str | None, settings: CSConfig) -> Path:
    """Return an existing folder on the disk of the weight store.

    This is the option, else weight_store_dir of csconfig or the nearest folder above it that exists.

    Raises:
        SettingsError: If the option is not a folder.
    """
    if option is not None:
        if not Path(option).is_dir():
            raise SettingsError(f"--store_dir {option} is not a folder")
        return Path(option)
    folder = Path(settings.weight_store_dir or ".")
    while not folder.is_dir():  # only a run makes it
        folder = folder.parent
    return folder


def batch_of(input_fn: Callable[..., Any], params: Any, mode: str, config: Any) -> ShapeInputs:
    """Return the shapes of an input_fn's batch, without reading any data.

    Raises:
        SettingsError: If input_fn needs data that is missing, or does not return a Dataset of known shapes.
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
        raise no_input(params, mode, f"the shapes of the input_fn's batch {spec} are not known") from error


def no_input(params: Any, mode: str, reason: str) -> SettingsError:
    """Return an error that says which options describe the batch, with sizes from the params file if it has them."""
    section = params.get("train_input" if mode == "train" else "eval_input") if isinstance(params, Mapping) else None
    sizes = [section.get(name) for name in ("batch_size", "max_sequence_length")] if isinstance(section, dict) else []
    dims = "x".join(map(str, sizes)) if sizes and all(isinstance(size, int) for size in sizes) else "8x2048"
    words = f"--input input_ids=int32:{dims} --input input_mask=int32:{dims} --labels int32:{dims}"
    return SettingsError(f"no input is given, and {reason}; describe each tensor of the batch, for example {words}")


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
