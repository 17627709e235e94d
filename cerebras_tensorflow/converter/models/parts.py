"""Entries that many tables share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cerebras_tensorflow.converter.layouts import PLAIN, TRANSPOSED, Layout
from cerebras_tensorflow.converter.rules import CS, HF, TF, Config, Constant, Model, Place, Release, Tensor

CS_FIRST_FORMATS = ("cs-1.7", "cs-1.8")
CS_2_FORMATS = tuple(f"cs-2.{number}" for number in range(10))
CS_FORMATS = (*CS_FIRST_FORMATS, "cs-1.9", *CS_2_FORMATS)
# Names in a run's checkpoints that are not weights: optimizer state and counters.
RUN_STATE = r"global_step|optimizer\..*|lr_scheduler\..*|amp\..*|scaler\..*|grad_scaler.*|state_version|__.*"
SLOTS = (
    r"global_step|beta[12]_power|current_loss_scale|good_steps|steps_since_rescale|overflows_since_rescale"
    r"|accum_step_counter|.*_grad_accum_\d+|.*/(Adam|AdamW|LAMB|Adafactor|Momentum|RMSProp)(_1)?"
)


def numbered(name: str, number: int) -> str:
    """Return the name of the n-th layer of a kind in TensorFlow; the first name has no number."""
    return f"{name}_{number}" if number else name


def _doubled(scope: str) -> str:
    return f"{scope}/{scope.rpartition('/')[2]}"


def plain(key: str, hf: str | None, tf: str | None, **extra: Any) -> Tensor:
    """Return a tensor that every format stores in the canonical layout."""
    names = {CS: key, HF: hf, TF: tf}
    return Tensor(key, {kind: Place(name) for kind, name in names.items() if name is not None}, **extra)


def norm(key: str, hf: str, tf: str | None, has_bias: bool = True, **extra: Any) -> list[Tensor]:
    """Return the scale of a norm, and its shift if it has one."""
    kinds = (("weight", "gamma"), ("bias", "beta")) if has_bias else (("weight", "gamma"),)
    return [
        plain(
            f"{key}.{kind}",
            f"{hf}.{kind}",
            f"{_doubled(tf)}/{tf_kind}" if tf is not None else None,
            **{name: value(kind) if callable(value) else value for name, value in extra.items()},
        )
        for kind, tf_kind in kinds
    ]


def linear(
    key: str,
    hf: str,
    tf: str | None,
    has_bias: bool = True,
    hf_layout: Layout = PLAIN,
    part: int = 0,
    is_optional: bool = False,
) -> list[Tensor]:
    """Return the weight of a linear layer, and its bias if it has one."""

    def tensor(kind: str, tf_kind: str, tf_layout: Layout) -> Tensor:
        # A bias has no axes to swap. In packed layouts it is split like its weight.
        layout = hf_layout if kind == "weight" or hf_layout.parts > 1 else PLAIN
        places = {CS: Place(f"{key}.{kind}"), HF: Place(f"{hf}.{kind}", layout, part)}
        if tf is not None:
            places[TF] = Place(f"{_doubled(tf)}/{tf_kind}", tf_layout)
        return Tensor(f"{key}.{kind}", places, is_optional=is_optional)

    tensors = [tensor("weight", "kernel", TRANSPOSED)]
    return [*tensors, tensor("bias", "bias", PLAIN)] if has_bias else tensors


def last_norm(hf: str, tf: str | None, has_bias: bool = True) -> list[Tensor]:
    """Return a decoder's last norm, which CS stores twice."""
    return norm("transformer_decoder.norm", hf, tf, has_bias, copies=lambda kind: {CS: (f"ln_f.{kind}",)})


def tied(tensor: Tensor, table: str) -> Tensor:
    """Return an output layer that is tied to the embedding `table`; TensorFlow does not store it."""
    places = {kind: place for kind, place in tensor.places.items() if kind != TF}
    return replace(tensor, places=places, same_as=table)


def checked(kind: str, **values: Any) -> tuple[Constant, ...]:
    """Return settings that must have these values if a config has them."""
    return tuple(Constant(kind, key, value) for key, value in values.items())


def written(**values: Any) -> tuple[Constant, ...]:
    """Return settings of the PyTorch Model Zoo that must have these values; converted configs include them."""
    return tuple(Constant(CS, key, value, is_written=True) for key, value in values.items())


def since(first: Release, constants: Iterable[Constant]) -> tuple[Constant, ...]:
    """Return constants for settings that exist since a release."""
    return tuple(replace(item, since=first) for item in constants)


def before(first: Release, constants: Iterable[Constant]) -> tuple[Constant, ...]:
    """Return constants for settings that only releases before the given one have, or write in this way."""
    return tuple(replace(item, before=first) for item in constants)


def with_defaults(constants: Iterable[Constant], **defaults: Any) -> tuple[Constant, ...]:
    """Return constants with the values that the PyTorch Model Zoo uses if a config lacks the setting."""
    return tuple(
        replace(item, default=defaults[item.key]) if item.format == CS and item.key in defaults else item
        for item in constants
    )


def headless(model: Model, hf_class: str) -> Model:
    """Return the variant whose Hugging Face side has no output layer."""

    def tensors(config: Config) -> list[Tensor]:
        return [tensor for tensor in model.tensors(config) if not tensor.key.startswith("lm_head")]

    return replace(
        model,
        name=f"{model.name}-headless",
        tensors=tensors,
        formats=tuple(name for name in model.formats if name != TF),
        hf_prefix="",
        hf_class=hf_class,
        head="lm_head",
        caveat="conversion to HF drops the CS model's language model head; conversion to CS leaves it out, so that a "
        "run initialises it at random",
    )
