"""The micro-batch size of a run: from the settings, or the largest that fits into the memory budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from cerebras_tensorflow.errors import MemoryBudgetError, SettingsError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig, check_micro_batch_size
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import INPUT_SECTIONS
from cerebras_tensorflow.logs import run_log

KEY = "micro_batch_size"
_Result = TypeVar("_Result")


class CutBatches(Protocol):
    """An input that can cut its batches into micro-batches."""

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch."""

    @property
    def sizes_of_parts(self) -> list[int]:
        """The sizes of micro-batches of which each CSX gets at least one, ascending."""

    @property
    def is_fed(self) -> bool:
        """Whether the step gets its batches through placeholders, so that they can be cut."""

    def cut_batches(self, micro_batch_size: int | None) -> None:
        """Let the placeholders take micro-batches of this size; None: whole batches."""


def requested(settings: CSConfig, params: Any, mode: str) -> Any:
    """Return micro_batch_size for a mode, from params' input section or else from CSConfig; None for "none".

    Raises:
        SettingsError: If it is not one of the documented values.
    """
    section = params.get(INPUT_SECTIONS[mode]) if isinstance(params, Mapping) else None
    given = section.get(KEY) if isinstance(section, Mapping) else None
    check_micro_batch_size(given)
    value = given if given is not None else settings.micro_batch_size
    return None if value == "none" else value


def sizes_to_explore(value: Any, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that compile compares, descending.

    Args:
        value: "explore" or {"explore": {"min": ..., "max": ...}}.
        sizes: The sizes that the batches allow, ascending.
    """
    limits = value["explore"] if isinstance(value, Mapping) else {}
    low, high = limits.get("min", 1), limits.get("max")
    return [size for size in reversed(sizes) if low <= size and (high is None or size <= high)]


def is_exploring(value: Any) -> bool:
    """Whether a setting asks to compare sizes."""
    return value == "explore" or isinstance(value, Mapping)


def cut(inputs: CutBatches, settings: CSConfig, params: Any, mode: str) -> None:
    """Let an input's placeholders take micro-batches of the requested size. In inference "auto" means whole batches.

    Raises:
        SettingsError: If the batches cannot be cut so, or the setting is for compile only.
    """
    value = requested(settings, params, mode)
    _refuse_exploring(value)
    inputs.cut_batches(None if value == "auto" else value)


def first_that_fits(inputs: CutBatches, settings: CSConfig, params: Any, attempt: Callable[[], _Result]) -> _Result:
    """Compile training with the requested micro-batch size; "auto" tries sizes until one fits. Return the result.

    Args:
        inputs: The input, whose batches are cut before each attempt.
        settings: The run's CSConfig.
        params: The user's params.
        attempt: Compiles the step.

    Raises:
        SettingsError: If the batches cannot be cut so, or the setting is for compile only.
        MemoryBudgetError: If no size fits.
    """
    value = requested(settings, params, ModeKeys.TRAIN)
    _refuse_exploring(value)
    if value != "auto" or settings.memory_budget is None or not inputs.is_fed:
        inputs.cut_batches(None if value == "auto" else value)
        return attempt()
    for size in reversed(inputs.sizes_of_parts or [1]):
        inputs.cut_batches(size)
        try:
            result = attempt()
        except MemoryBudgetError as error:
            if size == 1:
                raise
            run_log.info("A micro-batch of %d samples does not fit into memory_budget: %s", size, error)
        else:
            run_log.info("micro_batch_size auto: %d of %d samples.", size, inputs.batch_size)
            return result
    raise AssertionError("1 divides every batch size")


def _refuse_exploring(value: Any) -> None:
    if is_exploring(value):
        raise SettingsError(
            f"micro_batch_size is {value!r}, which only compares sizes. Use it with --compile_only or "
            "CerebrasEstimator.compile, then set the size that it recommends."
        )
