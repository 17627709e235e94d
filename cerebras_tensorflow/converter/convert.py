"""A checkpoint from one format into another, one tensor at a time."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebras_tensorflow.converter.configs import family
from cerebras_tensorflow.converter.rules import CS, HF, TF, Array, Config, Model, Place, Tensor
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.interface import TensorReader

logger = logging.getLogger(__name__)


class UnmatchedKeysError(CheckpointError):
    """A source that holds tensors which no rule knows."""


@dataclass(frozen=True)
class Output:
    """One tensor of the target: its name and the canonical values that it holds, in order."""

    name: str
    tensors: tuple[Tensor, ...]
    place: Place


class Conversion:
    """How a source becomes a target. Iterating gives the target's tensors, each computed when its turn comes.

    At most one stored tensor and one converted one are in memory.

    Args:
        model: Its table.
        config: Under Hugging Face's names.
        reader: The source; stays open as long as the conversion is used.
        source: Its format.
        target: The target's format.
        drop_unmatched_keys: Leave out what no rule knows instead of refusing.

    Raises:
        UnmatchedKeysError: If the source holds tensors that no rule knows.
        CheckpointError: If it lacks one that the target needs.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        reader: TensorReader,
        source: str,
        target: str,
        drop_unmatched_keys: bool = False,
    ) -> None:
        self._model, self._config, self._reader = model, config, reader
        self._source, self._target = family(source), family(target)
        tensors = model.tensors(config)
        self._by_key = {tensor.key: tensor for tensor in tensors}
        self._stored = {self._bare(name): name for name in reader.names()}
        self.outputs = _outputs(model, tensors, self._target)
        self._check(tensors, drop_unmatched_keys)

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        for output in self.outputs:
            yield output.name, self.value(output)

    def value(self, output: Output) -> Array:
        """Return one tensor of the target."""
        parts = [self._canonical(tensor) for tensor in output.tensors]
        return _typed(output.place.layout.join(parts, self._config), self._target)

    def specification(self, output: Output) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the type and shape of one tensor of the target, without reading values.

        Shapes follow from running the layouts on arrays that occupy no memory.
        """
        parts = []
        for tensor in output.tensors:
            place = self._place(tensor)
            entry = self._reader.entry(self._stored[place.name])
            empty = np.broadcast_to(np.zeros((), entry.dtype), entry.shape)
            parts.append(place.layout.split(empty, place.part, self._config))
        joined = output.place.layout.join(parts, self._config)
        return _dtype(joined.dtype, self._target), joined.shape

    def _canonical(self, tensor: Tensor) -> Array:
        place = self._place(tensor)
        stored = self._reader.read(self._stored[place.name])
        return place.layout.split(stored, place.part, self._config)

    def _place(self, tensor: Tensor) -> Place:
        """Where the source has a value, or the one that stands in for it."""
        place = tensor.places.get(self._source)
        if (place is None or place.name not in self._stored) and tensor.same_as is not None:
            place = self._by_key[tensor.same_as].places[self._source]
        if place is None or place.name not in self._stored:
            raise CheckpointError(
                f"{self._reader.path}: no tensor {place.name if place else tensor.key!r}, which {self._model.name} "
                "needs. Is it a checkpoint of this model, and is the config its own?"
            )
        return place

    def _bare(self, name: str) -> str:
        """A name of the source without the prefix that some files carry."""
        if self._source == HF:
            return name.removeprefix(self._model.hf_prefix)
        if self._source == CS:
            # One from the file's dict, another from the wrapper that releases since 1.8 put around the model.
            return name.removeprefix("model.").removeprefix("model.")
        return name

    def _check(self, tensors: list[Tensor], drop_unmatched_keys: bool) -> None:
        known = {tensor.places[self._source].name for tensor in tensors if self._source in tensor.places}
        if self._source == CS:
            known |= set(self._model.cs_copies)
            if not self._model.has_head:
                known |= {"lm_head.weight", "lm_head.bias"}
        # A tied output layer is stored by some files although the table has it in one place only.
        known |= {tensor.key for tensor in tensors if tensor.same_as is not None and self._source != TF}
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
                f"Unable to match all keys. {len(unmatched)} of {len(self._stored)} tensors of {self._reader.path} are "
                f"known to no rule of {self._model.name}, first {unmatched[0]!r}. Is it a checkpoint of this model? To "
                "leave them out give --drop-unmatched-keys."
            )
        if unmatched:
            logger.warning("proceeding even though some keys weren't matched")
        for output in self.outputs:
            for tensor in output.tensors:
                self._place(tensor)


def _outputs(model: Model, tensors: list[Tensor], target: str) -> list[Output]:
    grouped: dict[str, list[tuple[Place, Tensor]]] = {}
    for tensor in tensors:
        place = tensor.places.get(target)
        if place is not None:
            grouped.setdefault(place.name, []).append((place, tensor))
    outputs = []
    for name, members in grouped.items():
        ordered = sorted(members, key=lambda member: member[0].part)
        full_name = name
        if target == HF and not name.startswith(("lm_head", "cls.", "bert.")):
            full_name = model.hf_prefix + name
        outputs.append(Output(full_name, tuple(tensor for _, tensor in ordered), ordered[0][0]))
    if target == CS:
        by_name = {output.name: output for output in outputs}
        outputs += [Output(copy, by_name[key].tensors, by_name[key].place) for copy, key in model.cs_copies.items()]
    return outputs


def _dtype(dtype: np.dtype[Any], target: str) -> np.dtype[Any]:
    """Our TensorFlow variables are float32, whatever the source's type; others keep it."""
    return np.dtype(np.float32) if target == TF else dtype


def _typed(value: Array, target: str) -> Array:
    return np.ascontiguousarray(value, dtype=_dtype(value.dtype, target))
