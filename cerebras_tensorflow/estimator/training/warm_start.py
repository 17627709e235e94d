"""Warm starts: which variables start from a checkpoint, and from which of its tensors."""

from __future__ import annotations

import os
import re
from collections import namedtuple
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.model.model_call import Model, variable_name
from cerebras_tensorflow.estimator.model.partitions import PartKey
from cerebras_tensorflow.estimator.model.sparse_weights import MASK_SUFFIX
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.restore_errors import MissingCheckpointError
from cerebras_tensorflow.locations import checkpoint_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

if TYPE_CHECKING:
    _Fields: TypeAlias = Any
else:
    _Fields = namedtuple(
        "WarmStartSettings",
        ("ckpt_to_initialize_from", "vars_to_warm_start", "var_name_to_vocab_info", "var_name_to_prev_var_name"),
    )


class WarmStartSettings(_Fields):
    """Where variables start from, instead of their initializers.

    Attributes:
        ckpt_to_initialize_from: A checkpoint of any kind that we read, also by URL; a folder with a `checkpoint` file;
            or a SavedModel.
        vars_to_warm_start: A regular expression for trainable variables, a list of regular expressions for all
            variables, or a list of variables. Expressions match from the start of a name; names end in ":0". None: no
            variable. Default: all trainable variables.
        var_name_to_vocab_info: Name in the model -> tf.compat.v1.train.VocabInfo, to match rows by their words. This
            requires a checkpoint in TensorFlow's format.
        var_name_to_prev_var_name: Name in the model -> name in the checkpoint.
        is_lenient: Our own setting: whether variables keep their initial values if the checkpoint lacks them or has
            another shape.

    Raises:
        ValueError: If there is no checkpoint.
        SettingsError: As `checkpoint_location`.
    """

    is_lenient = False

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: Mapping[str, Any] | None = None,
        var_name_to_prev_var_name: Mapping[str, str] | None = None,
    ) -> Any:
        """Return checked settings."""
        if not ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings")
        return super().__new__(
            cls,
            checkpoint_location(ckpt_to_initialize_from),
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


@dataclass(frozen=True)
class WarmStart:
    """What a warm start does with one model.

    Attributes:
        sources: Variable -> tensor of the checkpoint; a PartKey for a part of it.
        by_vocabulary: Variables whose rows are matched by their words.
    """

    sources: Mapping[str, str]
    by_vocabulary: Sequence[str]


def warm_start_settings(value: Any, is_lenient: bool = False) -> WarmStartSettings | None:
    """Return a caller's warm start as settings.

    Args:
        value: A path, WarmStartSettings of ours or of tf.estimator, or None.
        is_lenient: For a path: whether to load all matching variables and log the others.

    Raises:
        ValueError: If value has another type.
    """
    if value is None or isinstance(value, WarmStartSettings):
        return value
    if isinstance(value, (str, bytes, os.PathLike)):
        settings: WarmStartSettings = WarmStartSettings(value)
        settings.is_lenient = is_lenient
        return settings
    if hasattr(value, "ckpt_to_initialize_from"):
        made: WarmStartSettings = WarmStartSettings(
            value.ckpt_to_initialize_from,
            value.vars_to_warm_start,
            value.var_name_to_vocab_info,
            value.var_name_to_prev_var_name,
        )
        return made
    raise ValueError(f"warm_start_from must be a string or a WarmStartSettings, instead got {type(value)}")


def checkpoint_of(settings: WarmStartSettings) -> str:
    """Return the checkpoint of a warm start; for a SavedModel, the one inside it."""
    path = settings.ckpt_to_initialize_from
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return os.path.join(path, "variables", "variables")
    return path


def plan_warm_start(model: Model, settings: WarmStartSettings, of_hooks: Set[str] = frozenset()) -> WarmStart:
    """Find the tensors of a checkpoint for the variables of a model, without those that hooks have made.

    Raises:
        ValueError: If the checkpoint lacks a requested variable or has another shape, with the texts of TensorFlow. Or
            if a name in the settings is not a variable.
        MissingCheckpointError: If there is no checkpoint.
        CheckpointError: If the checkpoint cannot be read, or a lenient start finds no matching variable.
    """
    path = checkpoint_of(settings)
    if not checkpoints.exists(path):
        raise MissingCheckpointError(path)
    run_log.info("Warm-starting from: %s", path)
    if settings.vars_to_warm_start is None or isinstance(settings.vars_to_warm_start, str):
        run_log.info("Warm-starting variables only in TRAINABLE_VARIABLES.")
    plan, problems = _plan(model, settings, of_hooks)
    run_log.info("Warm-started %d variables.", len(plan.sources) + len(plan.by_vocabulary))
    for problem in problems:
        run_log.info("Not warm-started: %s", problem)
    return plan


def masks_of_warm_start(model: Model, settings: WarmStartSettings) -> set[str]:
    """Return the masks of sparse weights that a warm start sets. Raises what `plan_warm_start` raises."""
    return {weight.mask for weight in model.sparse} & set(_plan(model, settings)[0].sources)


def _plan(model: Model, settings: WarmStartSettings, of_hooks: Set[str] = frozenset()) -> tuple[WarmStart, list[str]]:
    """Return the plan, and why a lenient start leaves out variables."""
    variables, path = model.saved_names(), checkpoint_of(settings)
    wanted = [name for name in _selected(model, settings) if name not in of_hooks]
    keys = model.checkpoint_keys()
    by_vocabulary = [name for name in variables if keys[name] in settings.var_name_to_vocab_info]
    viable = [str(keys[name]) for name in (*wanted, *by_vocabulary)]
    _check_all_used("var_name_to_prev_var_name", settings.var_name_to_prev_var_name, viable)
    _check_all_used("var_name_to_vocab_info", settings.var_name_to_vocab_info, [*map(str, keys.values())])
    sources: dict[str, str] = {}
    problems = []
    with open_checkpoint(path) as reader:
        of_objects = checkpoints.names_of_objects(reader)
        for name in wanted:
            key = keys[name]
            if key in settings.var_name_to_vocab_info:
                continue
            source = settings.var_name_to_prev_var_name.get(key, str(key))
            source = of_objects.get(source, source)
            shape = key.shape if isinstance(key, PartKey) else tuple(variables[name].shape.as_list())
            if source not in reader:
                problems.append(f"Tensor {source} is not found in {path} checkpoint")
            elif reader.entry(source).shape != shape:
                problems.append(
                    f"Shape of variable {name}:0 ({shape}) doesn't match with shape of tensor {source} "
                    f"({list(reader.entry(source).shape)}) from checkpoint reader."
                )
            else:
                sources[name] = key.renamed(source) if isinstance(key, PartKey) else source
        for weight in model.sparse:
            if weight.name in sources and f"{sources[weight.name]}{MASK_SUFFIX}" in reader:
                sources[weight.mask] = f"{sources[weight.name]}{MASK_SUFFIX}"
        if problems and not settings.is_lenient:
            shapes = {name: list(reader.entry(name).shape) for name in reader.names()}
            lacks = problems[0].startswith("Tensor")
            raise ValueError(f"{problems[0]} {shapes}" if lacks else problems[0])
    if wanted and not sources and settings.is_lenient:
        raise CheckpointError(f"cannot warm-start from {path}: it shares no variable with the model")
    return WarmStart(sources, by_vocabulary), problems


def _selected(model: Model, settings: WarmStartSettings) -> list[str]:
    wanted = settings.vars_to_warm_start
    if wanted is None or isinstance(wanted, str):
        trainable = [variable_name(variable) for variable in model.graph.get_collection("trainable_variables")]
        return [name for name in trainable if wanted is not None and re.match(wanted, f"{name}:0")]
    if not isinstance(wanted, (list, tuple)):
        raise ValueError(f"`vars_to_warm_start must be a `list` or `str`.  Given type is {type(wanted)}")
    names = model.saved_names()
    if all(isinstance(item, str) for item in wanted):
        return [name for name in names if any(re.match(item, f"{name}:0") for item in wanted)]
    if not all(hasattr(item, "name") and hasattr(item, "shape") for item in wanted):
        raise ValueError(
            "If `vars_to_warm_start` is a list, it must be all `Variable` or all `str`.  "
            f"Given types are {[type(item) for item in wanted]}"
        )
    return list(dict.fromkeys(variable_name(item) for item in wanted))


def _check_all_used(setting: str, given: Mapping[str, Any], viable: Sequence[str]) -> None:
    unused = set(given) - set(viable)
    if unused:
        raise ValueError(
            f"You provided the following variables in {setting} that were not used: {unused}.  "
            f"Perhaps you misspelled them?  Here is the list of viable variable names: {dict.fromkeys(viable).keys()}"
        )
