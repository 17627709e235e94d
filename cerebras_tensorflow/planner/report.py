"""A plan as text: bytes moved, memory, and the time of a step here and on a simulated CS-2."""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.compiler.report import compile_report_text, memory_plan_text
from cerebras_tensorflow.perf.timeline import LOAD, STORE, Timeline
from cerebras_tensorflow.planner.plan import StepPlan, step_s
from cerebras_tensorflow.planner.rates import Rates
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.scaling import added_s, counts_up_to, scaling, scaling_text
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.units import format_bytes, format_seconds


def plan_text(title: str, plan: StepPlan, rates: Rates | None, line: Timeline | None) -> str:
    """Return the whole report.

    Args:
        title: Name of the model.
        plan: The plan.
        rates: Rates of this machine. None: they were not measured.
        line: The planned timeline at those rates.
    """
    loads = sum(event.kind != "gather" for event in plan.program.events)
    parts = [
        f"{title}: {plan.num_parameters / 1e9:.3g} billion parameters, batch {plan.batch_size}, {plan.program.mode}.",
        "Planned from shapes: no weight was made, no step was run.",
        "",
        f"Moved in a step{' (all weights fit in memory, so only within memory)' if plan.is_in_memory else ''}",
        f"  read     {format_bytes(plan.read_bytes):>10}  in {loads} loads; embedding rows not counted",
        f"  written  {format_bytes(plan.written_bytes):>10}",
        "",
        memory_plan_text(plan.program, plan.memory),
    ]
    if plan.memory_budget is not None:
        total = format_bytes(plan.process_bytes + plan.memory.peak_bytes)
        parts += [f"With the process: {total} of the memory budget of {format_bytes(plan.memory_budget)}.", ""]
    parts += _too_large(plan)
    if rates is not None and line is not None:
        whole_s, compute_s = step_s(line)
        moves_s = line.busy_s((LOAD, STORE))
        place = "in memory" if plan.is_in_memory else "on the disk"
        parts += [
            f"This machine (estimated from measured rates; the weight store {place})",
            f"  rates    {rates.text()}",
            f"  batch    {_batch(plan)}",
            f"  compute  {format_seconds(compute_s):>10}  {plan.num_flops:.3e} floating-point operations, and updates",
            f"  moves    {format_seconds(moves_s):>10}  {line.overlap():.0%} of it overlaps computation",
            f"  a step   {format_seconds(whole_s):>10}  {plan.batch_size / whole_s if whole_s else 0:.3g} samples/s",
            "",
        ]
    parts.append(compile_report_text(plan.cs2))
    if plan.cs2.num_csx > 1:
        parts.append(scaling_text(_curve(plan)))
    if plan.sparse_cs2 is not None:
        skip = facts.SPARSE_SKIP
        parts += [
            "Sparse weights on the simulated CS-2",
            f"  at most  {plan.sparse_cs2.samples_per_s:.4g} samples/s instead of {plan.cs2.samples_per_s:.4g}, if "
            f"{skip.value:.0%} {skip.unit} take no time ({skip.status}: {skip.source})",
            "",
        ]
    return "\n".join(parts)


def _curve(plan: StepPlan) -> dict[int, Simulation]:
    """Return the simulated step for numbers of systems up to that of the plan."""
    return scaling(plan.network, plan.workload, counts_up_to(plan.cs2.num_csx))


def _too_large(plan: StepPlan) -> list[str]:
    """Return what to do if this machine has less free memory than the step needs; nothing if it has enough."""
    free, peak = free_memory_bytes(), plan.memory.peak_bytes
    if peak <= free:
        return []
    options = ["--memory_budget SIZE keeps values in the weight store or computes them again"]
    if plan.program.micro_batches is None and plan.batch_size > 1:
        options.insert(0, f"--micro_batch_size auto with --memory_budget SIZE cuts the batch of {plan.batch_size}")
    return [
        f"Change: the peak of {format_bytes(peak)} is more than the {format_bytes(free)} of memory that is free on "
        f"this machine. {'; '.join(options)}; a smaller --batch_size needs less.",
        "",
    ]


def _batch(plan: StepPlan) -> str:
    parts = plan.program.micro_batches
    return f"{plan.batch_size} samples, {'at once' if parts is None else f'in {parts.count} micro-batches'}"


def plan_values(plan: StepPlan, rates: Rates | None, line: Timeline | None) -> dict[str, Any]:
    """Return the figures of a report for other programs. Names of simulated figures begin with "simulated"."""
    values: dict[str, Any] = {
        "mode": plan.program.mode,
        "num_parameters": plan.num_parameters,
        "batch_size": plan.batch_size,
        "flops": plan.num_flops,
        "read_bytes": plan.read_bytes,
        "written_bytes": plan.written_bytes,
        "store_bytes": plan.memory.store_bytes,
        "planned_peak_bytes": plan.memory.peak_bytes,
        "process_bytes": plan.process_bytes,
        "memory_budget": plan.memory_budget,
        "num_csx": plan.cs2.num_csx,
        "simulated_cs2_step_s": plan.cs2.step_s,
        "simulated_cs2_samples_per_s": plan.cs2.samples_per_s,
        "simulated_cs2_samples_per_s_range": plan.cs2.samples_range,
        "simulated_cs2_micro_batches": plan.cs2.micro_batches,
        "simulated_cs2_limits_s": plan.cs2.limits(),
    }
    if plan.cs2.num_csx > 1:
        curve = _curve(plan)
        values["simulated_scaling_samples_per_s"] = {count: step.samples_per_s for count, step in curve.items()}
        values["simulated_scaling_limits_s"] = added_s(curve[1], curve[plan.cs2.num_csx])
    if plan.sparse_cs2 is not None:
        values["simulated_sparse_cs2_step_s"] = plan.sparse_cs2.step_s
        values["simulated_sparse_cs2_samples_per_s"] = plan.sparse_cs2.samples_per_s
    if rates is not None and line is not None:
        values["estimated_step_s"], values["estimated_compute_s"] = step_s(line)
        values["measured_rates"] = vars(rates)
    return values
