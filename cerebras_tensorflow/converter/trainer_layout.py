"""The two layouts of a params file: sections until release 2.2, and one section `trainer` since 2.3.

Source: the public tag 2.3.1, which reads both layouts and converts the old one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from cerebras_tensorflow.converter.rules import Config, ConfigConversionError

logger = logging.getLogger(__name__)

_CLUSTER = "init.backend.cluster_config"
_TRAIN_FLAGS, _EVAL_FLAGS = "init.callbacks.ScopedTrainFlags", "init.callbacks.ScopedValidateFlags"
_MICRO_BATCH = "csx.performance.micro_batch_size"
_RUN = {
    **{
        name: f"init.loop.{name}"
        for name in (
            "num_steps",
            "max_steps",
            "eval_steps",
            "num_epochs",
            "steps_per_epoch",
            "eval_frequency",
            "grad_accum_steps",
        )
    },
    "checkpoint_steps": "init.checkpoint.steps",
    **{
        name: f"init.checkpoint.{name}"
        for name in ("save_initial_checkpoint", "disable_strict_checkpoint_loading", "autoload_last_checkpoint")
    },
    "log_steps": "init.logging.log_steps",
    "logging": "init.logging.log_level",
    "wsc_log_level": "init.logging.wsc_log_level",
    "model_dir": "init.model_dir",
    "seed": "init.seed",
    "target_device": "init.backend.backend_type",
    **{
        name: f"init.backend.{name}"
        for name in ("compile_dir", "compile_only", "validate_only", "drop_data", "retrace_every_iteration")
    },
    "num_wgt_servers": f"{_CLUSTER}.max_wgt_servers",
    "num_act_servers": f"{_CLUSTER}.max_act_per_csx",
    **{
        name: f"{_CLUSTER}.{name}"
        for name in (
            "num_csx",
            "num_workers_per_csx",
            "mount_dirs",
            "python_paths",
            "mgmt_address",
            "mgmt_namespace",
            "credentials_path",
            "job_labels",
            "job_priority",
            "job_time_sec",
            "disable_version_check",
        )
    },
    "load_checkpoint_states": "init.callbacks.LoadCheckpointStates.load_checkpoint_states",
    "max_checkpoints": "init.callbacks.KeepNCheckpoints.n",
    "precision_opt_level": "init.precision.precision_opt_level",
}
_OPTIMIZER = {
    name: f"init.precision.{name}"
    for name in (
        "loss_scaling_factor",
        "initial_loss_scale",
        "steps_per_increase",
        "min_loss_scale",
        "max_loss_scale",
        "max_gradient_norm",
        "max_gradient_value",
    )
}
_MODEL = {"compression": "WeightCompression", "lora_params": "Lora", "selective_grad": "SelectiveGrad"}
# Settings of the model that `init.precision` repeats.
_PRECISION = {"mixed_precision": "enabled", "fp16_type": "fp16_type"}
_ONE_OF_A_CLASS = ("LoadCheckpointStates", "KeepNCheckpoints", "ComputeNorm", "LogSparsity", *_MODEL.values())
_FLAGS = tuple(path.rsplit(".", 1)[1] for path in (_TRAIN_FLAGS, _EVAL_FLAGS))
_PATHS = ("fit.ckpt_path", "validate.ckpt_path", "validate_all.ckpt_paths")
_EVAL_DATA = ("fit.val_dataloader", "validate.val_dataloader", "validate_all.val_dataloaders")
_RATE = "learning_rate"


def to_trainer(content: Mapping[str, Any]) -> Config:
    """Return a params file in the layout since 2.3.

    >>> to_trainer({"model": {"hidden_size": 8}, "runconfig": {"max_steps": 5}})
    {'trainer': {'init': {'loop': {'max_steps': 5}, 'model': {'hidden_size': 8}}}}
    """
    old = copy.deepcopy(dict(content))
    new: Config = {}
    for key, path in _RUN.items():
        _move(old.get("runconfig"), key, new, path)
    model = old.pop("model")
    for key, callback in _MODEL.items():
        _move(model, key, new, f"init.callbacks.{callback}")
    for key, name in _PRECISION.items():
        if key in model:
            _set(new, f"init.precision.{name}", model[key])
    _set(new, "init.model", model)
    _move_optimizer(old, new)
    _move_sparsity(old, new)
    _move_inputs(old, new)
    checkpoint = (old.get("runconfig") or {}).pop("checkpoint_path", None)
    for path in _PATHS if checkpoint is not None else ():
        _set(new, path, checkpoint)
    callbacks = new["init"].get("callbacks")
    if callbacks:
        new["init"]["callbacks"] = [{name: settings} for name, settings in callbacks.items()]
    _warn_left(old)
    return {"trainer": new}


def from_trainer(content: Mapping[str, Any]) -> Config:
    """Return a params file in the layout until 2.2.

    >>> from_trainer({"trainer": {"init": {"loop": {"max_steps": 5}, "model": {"hidden_size": 8}}}})
    {'model': {'hidden_size': 8}, 'runconfig': {'max_steps': 5}}

    Raises:
        ConfigConversionError: If the file has several trainers, or callbacks, optimizers or schedules that the old
            layout cannot express.
    """
    trainer = copy.deepcopy(content["trainer"])
    if not isinstance(trainer, dict) or not isinstance(trainer.get("init"), dict):
        raise ConfigConversionError("Can't convert a config with several trainers, or without trainer.init.model.")
    init = trainer["init"]
    init["callbacks"] = _callbacks(init.get("callbacks") or [])
    old: Config = {"model": init.pop("model")}
    for key, path in _RUN.items():
        _move_back(trainer, path, old, "runconfig", key)
    for key, callback in _MODEL.items():
        if callback in init["callbacks"]:
            old["model"][key] = init["callbacks"].pop(callback)
    for key, name in _PRECISION.items():
        if name in (init.get("precision") or {}):
            old["model"][key] = init["precision"].pop(name)
    _restore_optimizer(trainer, old)
    _restore_sparsity(init, old)
    _restore_inputs(trainer, old)
    if (checkpoint := _pop_first(trainer, _PATHS)) is not None:
        old.setdefault("runconfig", {})["checkpoint_path"] = checkpoint
    _warn_left(trainer, "trainer.")
    return old


def _callbacks(entries: Any) -> Config:
    """Return callbacks by their class; the value of one that the old layout has no place for is a list of settings."""
    found: Config = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        for name, value in (entry if isinstance(entry, dict) else {entry: None}).items():
            settings = {} if value is None else value
            first = found.get(name)
            if name not in (*_FLAGS, *_ONE_OF_A_CLASS):
                found.setdefault(name, []).append(settings)
            elif first is None or first == settings:
                found[name] = settings
            elif name in _FLAGS and all(first.get(key, flag) == flag for key, flag in settings.items()):
                found[name] = {**first, **settings}
            else:
                raise ConfigConversionError(
                    f"Can't convert config with several callbacks {name}. Only one was supported before cs-2.3."
                )
    return found


def _move_optimizer(old: Config, new: Config) -> None:
    optimizer = old.get("optimizer")
    if not isinstance(optimizer, dict):
        return
    for key, path in _OPTIMIZER.items():
        _move(optimizer, key, new, path)
    rate = optimizer.pop(_RATE, None)
    if optimizer.pop("log_summaries", False):
        _set(new, "init.callbacks.ComputeNorm", {})
        _set(new, "init.precision.log_loss_scale", True)
    kind = optimizer.pop("optimizer_type", None)
    if kind is not None:
        _set(new, "init.optimizer", {kind: old.pop("optimizer")})
    if rate is not None:
        _set(new, "init.schedulers", [_scheduler(rate)])


def _scheduler(rate: Any) -> Config:
    """Return a schedule of the layout since 2.3: its class, and the settings."""
    if isinstance(rate, list):
        if len(rate) == 1:
            return _scheduler(rate[0])
        kind = rate[0].pop("main_scheduler", "sequential") if isinstance(rate[0], dict) else "sequential"
        name = "ChainedScheduler" if str(kind).startswith("chained") else "SequentialLR"
        return {name: {"schedulers": [_scheduler(part) for part in rate]}}
    if not isinstance(rate, dict):
        return {"ConstantLR": {_RATE: rate}}
    settings = dict(rate)
    name = str(settings.pop("scheduler", "Constant"))
    has_class_name = name.endswith(("LR", "Restarts", "Scheduler"))
    return {name if has_class_name else f"{name}LR": settings}


def _old_rate(scheduler: Config) -> Any:
    ((name, settings),) = scheduler.items()
    settings = dict(settings or {})
    if name in ("SequentialLR", "ChainedScheduler"):
        rates = [_old_rate(part) for part in settings.pop("schedulers", [])]
        milestones = settings.pop("milestones", None) if name == "SequentialLR" else None
        if milestones is not None and milestones != _sums_of_lengths(rates):
            raise ConfigConversionError(
                f"Can't convert config with {name}.milestones={milestones}. Before cs-2.3 a schedule starts when the "
                f"total_iters of those before it are over: {_sums_of_lengths(rates)}."
            )
        if settings:
            logger.warning("Key not matched: trainer.init.schedulers.%s: %s", name, ", ".join(settings))
        rates = [{"scheduler": "Constant", _RATE: rate} if not isinstance(rate, dict) else rate for rate in rates]
        if name == "ChainedScheduler" and rates:
            rates[0]["main_scheduler"] = "chained"
        return rates
    if name == "ConstantLR" and set(settings) == {_RATE}:
        return settings[_RATE]
    return {"scheduler": name.removesuffix("LR"), **settings}


def _sums_of_lengths(rates: list[Any]) -> list[Any]:
    """Return the steps at which the schedules after the first start; None where a length before is not given."""
    lengths = [rate.get("total_iters") if isinstance(rate, dict) else None for rate in rates[:-1]]
    return [None if None in (part := lengths[: end + 1]) else sum(part) for end in range(len(lengths))]


def _restore_optimizer(trainer: Config, old: Config) -> None:
    section: Config = {}
    optimizer = _pop(trainer, "init.optimizer")
    if optimizer:
        by_kind = optimizer if isinstance(optimizer, dict) else {optimizer: None}
        if len(by_kind) != 1:
            raise ConfigConversionError(
                f"Can't convert config with several optimizers: {', '.join(by_kind)}. Only one was supported before "
                "cs-2.3."
            )
        ((kind, settings),) = by_kind.items()
        section = {"optimizer_type": kind, **(settings or {})}
    schedulers = _pop(trainer, "init.schedulers") or []
    if len(schedulers) > 1:
        raise ConfigConversionError(
            f"Can't convert config with {len(schedulers)} schedulers. Only one was supported before cs-2.3."
        )
    for scheduler in schedulers:
        section[_RATE] = _old_rate(scheduler)
    for key, path in _OPTIMIZER.items():
        if (value := _pop(trainer, path)) is not None:
            section[key] = value
    norms, scales = _pop(trainer, "init.callbacks.ComputeNorm"), _pop(trainer, "init.precision.log_loss_scale")
    if norms is not None or scales:
        section["log_summaries"] = True
    if norms:
        logger.warning("Key not matched: trainer.init.callbacks.ComputeNorm: %s", ", ".join(norms))
    if section:
        old["optimizer"] = section


def _move_sparsity(old: Config, new: Config) -> None:
    sparsity = old.pop("sparsity", None)
    if not sparsity:
        return
    groups = sparsity if isinstance(sparsity, list) else [sparsity]
    summaries = [group.pop("add_summaries", False) for group in groups if isinstance(group, dict)]
    if any(summaries):
        _set(new, "init.callbacks.LogSparsity", {})
    _set(new, "init.sparsity", sparsity)


def _restore_sparsity(init: Config, old: Config) -> None:
    sparsity = init.pop("sparsity", None)
    groups = [group for group in (sparsity if isinstance(sparsity, list) else [sparsity]) if isinstance(group, dict)]
    if groups and "LogSparsity" in init["callbacks"]:
        for group in groups:
            group["add_summaries"] = True
    elif init["callbacks"].get("LogSparsity") == {}:
        logger.warning("Key not matched: trainer.init.callbacks.LogSparsity")
    if sparsity:
        old["sparsity"] = sparsity


def _move_inputs(old: Config, new: Config) -> None:
    for key, paths, flags in (
        ("train_input", ("fit.train_dataloader",), _TRAIN_FLAGS),
        ("eval_input", _EVAL_DATA, _EVAL_FLAGS),
    ):
        data = old.pop(key, None)
        if data is None:
            continue
        if isinstance(data, dict) and "micro_batch_size" in data:
            _set(new, flags, {_MICRO_BATCH: data.pop("micro_batch_size")})
        for path in paths:
            _set(new, path, copy.deepcopy(data))


def _restore_inputs(trainer: Config, old: Config) -> None:
    for key, paths, flags in (
        ("train_input", ("fit.train_dataloader",), _TRAIN_FLAGS),
        ("eval_input", _EVAL_DATA, _EVAL_FLAGS),
    ):
        if (data := _pop_first(trainer, paths)) is not None:
            old[key] = data
        settings = trainer["init"]["callbacks"].get(flags.rsplit(".", 1)[1])
        if isinstance(settings, dict) and _MICRO_BATCH in settings and isinstance(data, dict):
            data["micro_batch_size"] = settings.pop(_MICRO_BATCH)


def _move(section: Config | None, key: str, new: Config, path: str) -> None:
    if isinstance(section, dict) and key in section:
        _set(new, path, section.pop(key))


def _move_back(trainer: Config, path: str, old: Config, section: str, key: str) -> None:
    value = _pop(trainer, path)
    if value is not None:
        old.setdefault(section, {})[key] = value


def _set(new: Config, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        new = new.setdefault(parent, {})
    new[last] = value


def _pop(holder: Any, path: str) -> Any:
    *parents, last = path.split(".")
    for parent in parents:
        holder = holder.get(parent) if isinstance(holder, dict) else None
    return holder.pop(last, None) if isinstance(holder, dict) else None


def _pop_first(trainer: Config, paths: tuple[str, ...]) -> Any:
    """Return the first value of several paths, a list of one as that one; log the paths with another value."""
    first = None
    for path in paths:
        value = _pop(trainer, path)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if first is None:
            first = value
        elif value is not None and value != first:
            logger.warning("Key not matched: trainer.%s", path)
    return first


def _warn_left(content: Any, prefix: str = "") -> None:
    """Log the settings that the other layout has no place for."""
    for key, value in content.items():
        if isinstance(value, dict):
            _warn_left(value, f"{prefix}{key}.")
        elif value is not None:
            logger.warning("Key not matched: %s%s", prefix, key)
