"""Several plans side by side: every combination of batch size, micro-batch size, systems and memory budget."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tabulate import tabulate

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.system.wafer.simulate import simulate
from cerebras_tensorflow.text import is_number
from cerebras_tensorflow.units import format_bytes, format_seconds

NAMES = ("batch_size", "micro_batch_size", "num_csx", "memory_budget")
"""Options of cs-plan that take several values."""


@dataclass(frozen=True)
class Variant:
    """One combination. None: as params and input say."""

    batch_size: int | None = None
    micro_batch_size: int | str | None = None
    num_csx: int | None = None
    memory_budget: str | None = None


@dataclass(frozen=True)
class Row:
    """A combination and its plan, or the reason why there is none.

    Attributes:
        variant: The combination.
        plan: Its StepPlan.
        problem: Why there is no plan.
        step_s: Estimated time of a step on this machine [s]. None: not estimated.
    """

    variant: Variant
    plan: Any
    problem: str = ""
    step_s: float | None = None


def combinations(options: Any) -> list[Variant]:
    """Return every combination of the values that the options name."""
    values = [getattr(options, name) or [None] for name in NAMES]
    return [Variant(*chosen) for chosen in itertools.product(*values)]


def plans(variants: Sequence[Variant], make: Callable[[Variant], Any]) -> Iterator[tuple[Variant, Any, str]]:
    """Make each plan; give (variant, plan, problem). Plans that differ in num_csx alone share the compilation."""
    made: dict[Variant, Any] = {}
    for variant in variants:
        key = replace(variant, num_csx=None)
        try:
            if key not in made:
                made[key] = make(variant)
            plan = made[key]
            if variant.num_csx is not None and plan.workload.num_csx != variant.num_csx:
                workload = replace(plan.workload, num_csx=variant.num_csx)
                plan = replace(plan, workload=workload, cs2=simulate(plan.network, workload))
        except CerebrasError as error:
            if len(variants) == 1:
                raise
            yield variant, None, str(error)
        else:
            yield variant, plan, ""


def table(rows: Sequence[Row]) -> str:
    """Return the plans as a table. Columns of this machine and of the simulated CS-2 are apart."""
    varied = [name for name in NAMES if len({getattr(row.variant, name) for row in rows}) > 1]
    here = "this machine: "
    titles = [*varied, f"{here}memory", f"{here}moved", f"{here}step", "CS-2: samples/s", "CS-2: range", "CS-2: step"]
    lines = [[getattr(row.variant, name) for name in varied] + _cells(row) for row in rows]
    problems = [f"{number}. {row.problem}" for number, row in enumerate(rows, 1) if row.problem]
    text = tabulate(lines, [*titles, "CS-2: limit"], tablefmt="simple", disable_numparse=True)
    note = "Columns of this machine are estimates for it; those of the CS-2 are simulated, for all systems together."
    return "\n".join([text, "", note, *problems])


def _cells(row: Row) -> list[str]:
    if row.plan is None:
        return ["does not fit", "", "", "", "", "", "see below"]
    plan, cs2 = row.plan, row.plan.cs2
    slow, fast = cs2.samples_range
    needed = plan.process_bytes + plan.memory.peak_bytes
    is_over = plan.memory_budget is not None and needed > plan.memory_budget
    return [
        format_bytes(needed) + (" (over the budget)" if is_over else ""),
        format_bytes(plan.read_bytes + plan.written_bytes),
        format_seconds(row.step_s) if row.step_s is not None else "-",
        f"{cs2.samples_per_s:.4g}",
        f"{slow:.3g} to {fast:.3g}",
        format_seconds(cs2.step_s),
        next(iter(cs2.limits())),
    ]


def numbers(text: str) -> list[int]:
    """Return the numbers of an option such as "1,8,64".

    Raises:
        ArgumentTypeError: If one is not a number of 1 or more.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part) and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected one number or several, as in 8 or 1,8,64")
    return [int(part) for part in parts]


def words(text: str) -> list[int | str]:
    """Return the numbers and words of an option such as "4,8,none"."""
    return [int(part) if is_number(part) else part for part in (part.strip() for part in text.split(","))]
