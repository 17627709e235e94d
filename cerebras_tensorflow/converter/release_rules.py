"""What changes in a params file from one release of the PyTorch Model Zoo to the next, and back.

Source: the public tags 1.8 to 2.9 (the converters of configs). Downgrades are ours; a setting that the older release
lacks must have the value that the older release assumes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cerebras_tensorflow.converter import trainer_layout
from cerebras_tensorflow.converter.optimizer_rules import renamed_optimizer, sparsity_2_2
from cerebras_tensorflow.converter.rules import Config, ConfigConversionError, Release

logger = logging.getLogger(__name__)

# (whole params file, the model's name, whether to the newer release) -> changes it in place.
Rule = Callable[[Config, str, bool], None]

_OLD_RUN_SETTINGS = (
    "experimental_api",
    "multireplica",
    "num_replicas",
    "save_losses",
    "service_dir",
    "use_appliance_data",
    "num_act_servers",
    "num_wgt_servers",
)
# Names of models -> (setting before 2.0, norm if it is true, norm if it is false, its default; None: not known).
_NORMS: dict[tuple[str, ...], tuple[str, str, str, bool | None]] = {
    ("gpt2", "llama"): ("use_rms_norm", "rmsnorm", "layernorm", False),
    ("gptj", "gpt-neox", "codegen"): ("use_biasless_norm", "biasless-layernorm", "layernorm", False),
    ("t5", "transformer"): ("use_t5_layer_norm", "rmsnorm", "layernorm", None),
}
# Settings that a release introduced, with the values that earlier releases assume.
_INTRODUCED: dict[Release, dict[str, tuple[Any, ...]]] = {
    (2, 0): {"extra_attention_params": (None, {}), "attention_module": (None, "aiayn_attention")},
    (2, 1): {
        "rope_theta": (None, 10000, 10000.0),
        "pos_scaling_factor": (None, 1, 1.0),
        "pos_scaling_type": (None,),
        "pos_scaling_extra_args": (None, {}),
        "attention_sliding_window_length": (None,),
    },
    (2, 3): {"freeze_ffn_bias_in_glu": (None, False)},
}
_SCALINGS = {(2, 3): ("yarn", "llama3"), (2, 4): ("longrope",)}


def convert(content: Mapping[str, Any], model: str, source: Release, target: Release) -> Config:
    """Return a params file for another release.

    Args:
        content: The whole file.
        model: The model's name, with or without "-headless".
        source: Its release.
        target: The release to convert to.

    Raises:
        ConfigConversionError: If the target cannot express a setting.
    """
    changed: Config = copy.deepcopy(dict(content))
    name = model.removesuffix("-headless")
    is_newer = source < target
    between = [(first, rule) for first, rule in _RULES if min(source, target) < first <= max(source, target)]
    for first, rule in between if is_newer else reversed(between):
        if not is_newer:
            _check_introduced(changed, first)
        rule(changed, name, is_newer)
    if source >= (1, 9):
        changed.pop("cerebras", None)
    return changed


def _model(content: Config) -> Config:
    """Return the settings of the model, in either layout of a params file."""
    holder = content["trainer"]["init"] if "trainer" in content else content
    section: Config = holder["model"]
    return section


def _check_introduced(content: Config, release: Release) -> None:
    """Remove what `release` introduced, if an older release behaves in the same way."""
    section, name = _model(content), f"cs-{release[0]}.{release[1]}"
    kind = section.get("pos_scaling_type")
    if kind in _SCALINGS.get(release, ()):
        raise ConfigConversionError(f"Can't convert config with pos_scaling_type={kind}. It was introduced in {name}.")
    for key, values in _INTRODUCED.get(release, {}).items():
        value = section.pop(key, None)
        if value not in values:
            raise ConfigConversionError(f"Can't convert config with {key}={value}. It was introduced in {name}.")


def _to_2_0(content: Config, name: str, is_newer: bool) -> None:
    section = _model(content)
    for models, (key, when_true, when_false, default) in _NORMS.items():
        if name not in models:
            continue
        if is_newer:
            value = section.pop(key, None)
            value = default if value is None else value
            if value is not None:
                section["norm_type"] = when_true if value else when_false
        elif "norm_type" in section:
            norm = section.pop("norm_type")
            if norm not in (when_true, when_false):
                raise ConfigConversionError(
                    f"Can't convert config with norm_type={norm}. Only {when_true} or {when_false} is supported."
                )
            section[key] = norm == when_true
    if name in ("t5", "transformer") and not is_newer:
        for key in ("encoder_nonlinearity", "decoder_nonlinearity"):
            if str(section.get(key)).endswith("glu"):
                raise ConfigConversionError(
                    f"Can't convert config with {key}={section[key]}. Gates were introduced in cs-2.0."
                )
    if is_newer:
        _drop_old_settings(content)


def _drop_old_settings(content: Config) -> None:
    content.pop("csconfig", None)
    run = content.get("runconfig")
    if not isinstance(run, dict):
        return
    for key in _OLD_RUN_SETTINGS:
        if run.pop(key, None):
            logger.warning("Key not matched: runconfig.%s", key)
    if run.pop("is_pretrained_checkpoint", False):
        run["load_checkpoint_states"] = "model,dataloader"
    if "keep_checkpoint_max" in run:
        run["max_checkpoints"] = run.pop("keep_checkpoint_max")


def _to_2_1(content: Config, _name: str, is_newer: bool) -> None:
    section, run = _model(content), content.get("runconfig")
    if is_newer:
        _drop_old_settings(content)
        if "precision_opt_level" in section:
            content.setdefault("runconfig", {})["precision_opt_level"] = section.pop("precision_opt_level")
        if (is_bfloat16 := section.pop("use_bfloat16", None)) is not None:
            section["fp16_type"] = "bfloat16" if is_bfloat16 else "float16"
    else:
        if isinstance(run, dict) and "precision_opt_level" in run:
            section["precision_opt_level"] = run.pop("precision_opt_level")
        if (fp16_type := section.pop("fp16_type", None)) is not None:
            if fp16_type not in ("bfloat16", "float16"):
                raise ConfigConversionError(
                    f"Can't convert config with fp16_type={fp16_type}. Only bfloat16 or float16 is supported."
                )
            section["use_bfloat16"] = fp16_type == "bfloat16"
    if isinstance(content.get("optimizer"), dict):
        content["optimizer"] = renamed_optimizer(content["optimizer"], is_newer)


def _to_2_2(content: Config, _name: str, is_newer: bool) -> None:
    run = content.get("runconfig")
    if not is_newer:
        if content.get("sparsity"):
            logger.warning("The section sparsity is kept as it is. cs-2.2 renamed its settings: check them.")
        return
    if isinstance(run, dict):
        run.pop("autogen_policy", None)
    for key in ("train_input", "eval_input"):
        data = content.get(key)
        uses_accumulation = run.get("use_cs_grad_accum") if isinstance(run, dict) else None
        if isinstance(data, dict) and uses_accumulation is not None:
            if uses_accumulation:
                data.setdefault("micro_batch_size", "auto")
            else:
                data["micro_batch_size"] = None
    if isinstance(run, dict):
        run.pop("use_cs_grad_accum", None)
    if content.get("sparsity"):
        content["sparsity"] = sparsity_2_2(content["sparsity"])


def _to_2_3(content: Config, name: str, is_newer: bool) -> None:
    if is_newer and "trainer" not in content:
        if name == "gpt2":
            for key in ("use_position_embedding", "alibi_implementation", "weight_initialization_seed"):
                content["model"].pop(key, None)
        changed = trainer_layout.to_trainer(content)
    elif not is_newer and "trainer" in content:
        changed = trainer_layout.from_trainer(content)
    else:
        return
    content.clear()
    content.update(changed)


def _to_2_4(content: Config, name: str, is_newer: bool) -> None:
    section = _model(content)
    if is_newer:
        section.setdefault("name", {"codegen": "gptj", "bert-q&a": "bert-qa"}.get(name, name))
    else:
        section.pop("name", None)


def _to_2_5(content: Config, _name: str, is_newer: bool) -> None:
    """Until 2.4 the model has copies of the trainer's settings of precision."""
    if "trainer" not in content:
        return
    precision = content["trainer"]["init"].get("precision")
    for key, theirs in (("mixed_precision", "enabled"), ("fp16_type", "fp16_type")):
        if is_newer:
            _model(content).pop(key, None)
        elif isinstance(precision, dict) and theirs in precision:
            _model(content)[key] = precision[theirs]


_RULES: tuple[tuple[Release, Rule], ...] = (
    ((2, 0), _to_2_0),
    ((2, 1), _to_2_1),
    ((2, 2), _to_2_2),
    ((2, 3), _to_2_3),
    ((2, 4), _to_2_4),
    ((2, 5), _to_2_5),
)
