"""Converting a checkpoint from one format to another, one tensor at a time."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebras_tensorflow.converter.layouts import Array
from cerebras_tensorflow.converter.rules import (
    CS,
    CS_OLD,
    HF,
    MASK_SUFFIX,
    TF,
    Config,
    Model,
    Place,
    Tensor,
    family,
    release,
)
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.interface import TensorReader

logger = logging.getLogger(__name__)


class UnmatchedKeysError(CheckpointError):
    """A checkpoint has tensors that no rule covers."""


@dataclass(frozen=True)
class Output:
    """One tensor of the target: its name, and its canonical values in order."""

    name: str
    tensors: tuple[Tensor, ...]
    place: Place


class Conversion:
    """A conversion from a source to a target. Iterating computes the target's tensors one by one.

    At most one stored tensor and one converted tensor are in memory.

    Args:
        model: The model's table.
        config: Settings under Hugging Face's names.
        reader: The source. The caller keeps it open while the conversion is used.
        source: The source's format.
        target: The target's format.
        drop_unmatched_keys: Leave out tensors that no rule covers, instead of raising an error.
        is_sparse: Pruned weights are NaN in the source; they become zero.

    Raises:
        UnmatchedKeysError: If the source has tensors that no rule covers.
        CheckpointError: If it lacks a tensor that the target needs.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        reader: TensorReader,
        source: str,
        target: str,
        drop_unmatched_keys: bool = False,
        is_sparse: bool = False,
    ) -> None:
        self._model, self._config, self._reader = model, config, reader
        self._source, self._target = family(source), family(target)
        self._is_sparse = is_sparse
        tensors = model.tensors(config)
        if max(release(source), release(target)) >= (2, 1):
            tensors = [tensor.since_2_1() for tensor in tensors]
        # Some Hugging Face files have all tensors in a dict under `model`, as files of a training run do.
        is_wrapped = self._source == HF and all(name.startswith("model.") for name in reader.names())
        self._wrapper = "model." if is_wrapped else ""
        self._stored = {self._bare(name): name for name in reader.names()}
        tensors += self._masks(tensors)
        self._by_key = {tensor.key: tensor for tensor in tensors}
        self._check_matched(tensors, drop_unmatched_keys)
        kept = [tensor for tensor in tensors if not (tensor.is_optional and self._find(tensor) is None)]
        self.outputs = _outputs(model, kept, self._target)
        for output in self.outputs:
            for tensor in output.tensors:
                self._place(tensor)

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        for output in self.outputs:
            yield output.name, self.value(output)

    def value(self, output: Output) -> Array:
        """Return one tensor of the target."""
        parts = [self._canonical(tensor) for tensor in output.tensors]
        return _typed(output.place.layout.join(parts, self._config), self._target)

    def specification(self, output: Output) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the type and shape of one tensor of the target, without reading values.

        Runs the layouts on arrays that take no memory.
        """
        parts = []
        for tensor in output.tensors:
            place = self._place(tensor)
            entry = self._reader.entry(self._stored[place.name])
            empty = np.broadcast_to(np.zeros((), entry.dtype), entry.shape)
            parts.append(place.layout.split(empty, place.part, self._config))
        joined = output.place.layout.join(parts, self._config)
        return _dtype(joined.dtype, self._target), joined.shape

    def describe(self, output: Output) -> str:
        """Return the line that --debug prints: the source's names of an output, and the layout changes."""
        places = [self._place(tensor) for tensor in output.tensors]
        actions = {place.layout.action for place in (*places, output.place)} - {None}
        names = ", ".join(dict.fromkeys(self._stored[place.name] for place in places))
        return f"Matched {names} -> {output.name} action: {', '.join(sorted(map(str, actions))) or None}"

    def _canonical(self, tensor: Tensor) -> Array:
        place = self._place(tensor)
        stored = self._reader.read(self._stored[place.name])
        if self._is_sparse and stored.dtype.kind in "fV":
            stored = np.where(np.isnan(stored), np.zeros((), stored.dtype), stored)
        return place.layout.split(stored, place.part, self._config)

    def _find(self, tensor: Tensor) -> Place | None:
        """Return the place of a value, or of an equal one, in the source; None if it has neither."""
        place = _place_in(tensor, self._source)
        if place is not None:
            for name in (place.name, *tensor.copies.get(self._source, ())):
                if name in self._stored:
                    return Place(name, place.layout, place.part)
        # An HDF5 file stores only one of two tied values, so the embedding may have the output layer's name.
        for other in self._by_key.values():
            if other.same_as == tensor.key and (place := _place_in(other, self._source)) and place.name in self._stored:
                return place
        return self._find(self._by_key[tensor.same_as]) if tensor.same_as is not None else None

    def _place(self, tensor: Tensor) -> Place:
        stored = self._find(tensor)
        if stored is None:
            place = _place_in(tensor, self._source)
            raise CheckpointError(
                f"{self._reader.path}: no tensor {place.name if place else tensor.key!r}, which {self._model.name} "
                "needs. Is it a checkpoint of this model, with its own config?"
            )
        return stored

    def _bare(self, name: str) -> str:
        """Return a source's name in its current spelling, without the prefixes that some files have."""
        if self._source == HF:
            name = name.removeprefix(self._wrapper).removeprefix(self._model.hf_prefix)
        if self._source in (CS, CS_OLD):
            # One prefix comes from the file's dict, another from the model wrapper of releases since 1.8.
            name = name.removeprefix("model.").removeprefix("model.")
        for pattern, replacement in self._model.renamed.get(self._source, ()):
            name = re.sub(f"^{pattern}$", replacement, name)
        return name

    def _masks(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the masks of sparse weights that the source stores."""
        masks = [tensor.mask() for tensor in tensors if self._source in tensor.places]
        masks = [mask for mask in masks if (place := mask.places.get(self._source)) and place.name in self._stored]
        if masks and self._target == HF:
            logger.info("The masks of %d sparse weights are left out: %s has no place for them.", len(masks), HF)
        return masks

    def _check_matched(self, tensors: list[Tensor], drop_unmatched_keys: bool) -> None:
        known = set()
        for tensor in tensors:
            place = _place_in(tensor, self._source)
            is_placed = _place_in(tensor, self._target) is not None or tensor.key.endswith(MASK_SUFFIX)
            if place is not None and (is_placed or tensor.same_as is not None):
                known |= {place.name, *tensor.copies.get(self._source, ())}
            if tensor.same_as is not None and self._source != TF:
                known.add(tensor.key)  # some files store a tied output layer
        if self._source == CS and self._model.head:
            known |= {name for name in self._stored if name.startswith(tuple(self._model.head.split(", ")))}
        ignored = re.compile(self._model.ignored.get(self._source, "(?!)"))
        unmatched = [
            name
            for bare, name in self._stored.items()
            if bare not in known and not ignored.fullmatch(name) and not ignored.fullmatch(bare)
        ]
        for name in unmatched:
            logger.warning("Key not matched: %s", name)
        if unmatched and not drop_unmatched_keys:
            raise UnmatchedKeysError(
                "Unable to match all keys. If you want to proceed by dropping keys that couldn't matched, rerun with "
                f"--drop-unmatched-keys. ({len(unmatched)} of {len(self._stored)} tensors of {self._reader.path} are "
                f"known to no rule of {self._model.name}, first {unmatched[0]!r}. Is it a checkpoint of this model?)"
            )
        if unmatched:
            logger.warning("proceeding even though some keys weren't matched")


def _place_in(tensor: Tensor, kind: str) -> Place | None:
    """Return the place of a tensor in a kind of format. cs-1.6 has Hugging Face's names, with a few exceptions."""
    if kind != CS_OLD:
        return tensor.places.get(kind)
    return tensor.places.get(CS_OLD) or tensor.places.get(HF)


def _outputs(model: Model, tensors: list[Tensor], target: str) -> list[Output]:
    grouped: dict[str, list[tuple[Place, Tensor]]] = {}
    for tensor in tensors:
        place = _place_in(tensor, target)
        if place is not None:
            grouped.setdefault(place.name, []).append((place, tensor))
    outputs = []
    for name, members in grouped.items():
        ordered = sorted(members, key=lambda member: member[0].part)
        values, place = tuple(tensor for _, tensor in ordered), ordered[0][0]
        for full in (name, *values[0].copies.get(target, ())):
            prefix = model.hf_prefix if target == HF and not full.startswith(model.hf_heads) else ""
            outputs.append(Output(prefix + full, values, place))
    return outputs


def _dtype(dtype: np.dtype[Any], target: str) -> np.dtype[Any]:
    """Return the stored type: our TensorFlow weights are always float32; other targets keep the source's type."""
    return np.dtype(np.float32) if target == TF and dtype != np.bool_ else dtype


def _typed(value: Array, target: str) -> Array:
    return np.ascontiguousarray(value, dtype=_dtype(value.dtype, target))
