"""Layouts: conversions between a stored tensor and canonical values.

    # V stored rows, N heads, D head size, R rotated part of D, C inputs (absent for a bias)

A layout is a pair of functions. Both take weights and biases; a bias has only the axis of outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """The relation of a stored tensor to canonical values: equal, transposed, or several of them packed into one.

    Attributes:
        parts: Number of canonical values in one stored tensor.
        split: (stored tensor, part, config) -> the canonical value of that part.
        join: (canonical values of all parts, config) -> the stored tensor.
        action: Description for --debug.
    """

    parts: int
    split: Callable[[Array, int, dict[str, Any]], Array]
    join: Callable[[list[Array], dict[str, Any]], Array]
    action: str | None = None


PLAIN = Layout(1, lambda stored, _part, _config: stored, lambda parts, _config: parts[0])
TRANSPOSED = Layout(1, lambda stored, _part, _config: stored.T, lambda parts, _config: parts[0].T, "transpose")


def _third(stored: Array, part: int) -> Array:
    size = stored.shape[-1] // 3
    return stored[..., part * size : (part + 1) * size].T


# GPT-2 in Hugging Face: q, k and v are side by side in one (inputs, 3 outputs), their biases in one (3 outputs,).
THIRDS = Layout(
    3,
    lambda stored, part, _config: _third(stored, part),
    lambda parts, _config: np.concatenate([part.T for part in parts], axis=-1),
    "split into thirds",
)


def _swap_halves_and_pairs(rows: Array, head_size: int, rotary_dim: int, to_pairs: bool) -> Array:
    """Reorder the first R rows of each head between (first halves, second halves) and pairs; the other rows stay."""
    shaped = rows.reshape(-1, head_size, *rows.shape[1:])
    turned = shaped[:, :rotary_dim]
    grid = (2, rotary_dim // 2) if to_pairs else (rotary_dim // 2, 2)
    turned = np.swapaxes(turned.reshape(shaped.shape[0], *grid, *rows.shape[1:]), 1, 2)
    turned = turned.reshape(shaped.shape[0], rotary_dim, *rows.shape[1:])
    if rotary_dim == head_size:
        return turned.reshape(rows.shape)
    return np.concatenate([turned, shaped[:, rotary_dim:]], axis=1).reshape(rows.shape)


def _pairs(rows: Array, config: dict[str, Any]) -> Array:
    return _swap_halves_and_pairs(rows, config["head_size"], config["rotary_dim"], to_pairs=True)


def _halves(rows: Array, config: dict[str, Any]) -> Array:
    return _swap_halves_and_pairs(rows, config["head_size"], config["rotary_dim"], to_pairs=False)


# Llama's q and k: rotation pairs are half a head apart in Hugging Face and our TensorFlow model, side by side in CS.
HALVES = Layout(
    1,
    lambda stored, _part, config: _pairs(stored, config),
    lambda parts, config: _halves(parts[0], config),
    "rotary halves to pairs",
)
HALVES_TRANSPOSED = Layout(
    1,
    lambda stored, _part, config: _pairs(stored.T, config),
    lambda parts, config: _halves(parts[0], config).T,
    "transpose, rotary halves to pairs",
)


def _neox_part(stored: Array, part: int, config: dict[str, Any]) -> Array:
    size = config["head_size"]
    rows = stored.reshape(-1, 3, size, *stored.shape[1:])[:, part].reshape(-1, *stored.shape[1:])
    return rows if part == 2 else _pairs(rows, config)


def _neox_packed(parts: list[Array], config: dict[str, Any]) -> Array:
    size, rest = config["head_size"], parts[0].shape[1:]
    q, k, v = _halves(parts[0], config), _halves(parts[1], config), parts[2]
    return np.stack([part.reshape(-1, size, *rest) for part in (q, k, v)], axis=1).reshape(-1, *rest)


# GPT-NeoX in Hugging Face: rows (N, 3, D), so q, k and v of each head are consecutive.
NEOX_PACKED = Layout(3, _neox_part, _neox_packed, "split by head, rotary halves to pairs")


def _grouped(stored: Array, config: dict[str, Any]) -> Array:
    """Return rows as (G, N / G + 2, D, C): the heads of each group, then its key and its value."""
    num_groups = config["num_kv_heads"]
    return stored.reshape(num_groups, -1, config["head_size"], *stored.shape[1:])


def _falcon_part(stored: Array, part: int, config: dict[str, Any]) -> Array:
    grouped = _grouped(stored, config)
    heads = grouped[:, :-2] if part == 0 else grouped[:, -2:-1] if part == 1 else grouped[:, -1:]
    rows = heads.reshape(-1, *stored.shape[1:])
    return rows if part == 2 else _pairs(rows, config)


def _falcon_packed(parts: list[Array], config: dict[str, Any]) -> Array:
    q, k, v = _halves(parts[0], config), _halves(parts[1], config), parts[2]
    grouped = [_grouped(np.ascontiguousarray(part), config) for part in (q, k, v)]
    return np.concatenate(grouped, axis=1).reshape(-1, *q.shape[1:])


# Falcon in Hugging Face: each group of heads stores its queries, then one shared key and one shared value.
FALCON_PACKED = Layout(3, _falcon_part, _falcon_packed, "split by group, rotary halves to pairs")

_CODEGEN_GROUPS = 4
_CODEGEN_ORDER = (0, 2, 1)  # for parts q, k, v: the position in a group, whose order is q, v, k


def _codegen_part(stored: Array, part: int, _config: dict[str, Any]) -> Array:
    rest = stored.shape[1:]
    return stored.reshape(_CODEGEN_GROUPS, 3, -1, *rest)[:, _CODEGEN_ORDER[part]].reshape(-1, *rest)


def _codegen_packed(parts: list[Array], _config: dict[str, Any]) -> Array:
    rest = parts[0].shape[1:]
    ordered = [parts[_CODEGEN_ORDER.index(place)].reshape(_CODEGEN_GROUPS, -1, *rest) for place in range(3)]
    return np.stack(ordered, axis=1).reshape(-1, *rest)


# CodeGen in Hugging Face: four groups of heads; each group has all of q, then v, then k.
CODEGEN_PACKED = Layout(3, _codegen_part, _codegen_packed, "split by group")
