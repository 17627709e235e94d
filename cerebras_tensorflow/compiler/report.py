"""The compiler's results as readable text: schedule, memory plan, compile report."""

from __future__ import annotations

from cerebras_tensorflow.compiler.estimate import Estimate
from cerebras_tensorflow.compiler.memory_plan import MemoryPlan
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.units import format_bytes, format_seconds


def schedule_text(program: Program) -> str:
    """Return the schedule: one line for each move, in order."""
    if not program.events:
        return (
            f"Schedule ({program.mode})\n\nNothing moves during a step: all {len(program.resident)} variables "
            f"({format_bytes(program.weight_bytes)}) are resident.\n"
        )
    moved = sum(event.num_bytes * (2 if event.kind == "update" else 1) for event in program.events)
    lines = [
        f"Schedule ({program.mode})",
        "",
        f"{len(program.events)} moves of {len(program.streamed)} weights; {format_bytes(moved)} read and written in a "
        f"step, not counting the rows that `gather` reads.",
        "A move starts when the moves above it have been used, except for the last "
        f"{format_bytes(program.window_bytes)} of them.",
        "`load`: reads a weight. `update`: loads a weight, runs the optimizer, stores the weight. `gather`: reads only "
        "the batch's rows. `spill`: stores a value. `fill`: loads that value again.",
        "",
        f"{'number':>6}  {'kind':6}  {'bytes':>9}  {'first op':>8}  {'last op':>8}  weight",
    ]
    for number, event in enumerate(program.events):
        size = format_bytes(event.num_bytes) if event.num_bytes else "rows"
        name = program.stored[event.weight].name
        lines.append(f"{number:>6}  {event.kind:6}  {size:>9}  {int(event.first):>8}  {int(event.last):>8}  {name}")
    return "\n".join(lines) + "\n"


def memory_plan_text(program: Program, plan: MemoryPlan) -> str:
    """Return the memory plan."""
    rows = [
        ("variables in memory", plan.resident_bytes, f"{len(program.variables)} variables"),
        ("streamed weights, at most", plan.window_bytes, "with values loaded ahead, at the busiest op"),
        ("values between ops, at most", plan.activation_bytes, "from static shapes"),
        ("kernels, queues, allocators", plan.overhead_bytes, "estimated"),
        ("peak, without the process itself", plan.peak_bytes, "sum of the four"),
        ("values spilled to the store", plan.spilled_bytes, f"{len(program.spilled)} values, under the memory budget"),
        ("weight store", plan.store_bytes, f"{len(program.stored)} weights and values"),
    ]
    lines = [f"Memory plan ({program.mode})", ""]
    lines += [f"{name:<34}{format_bytes(size):>10}  {what}" for name, size, what in rows]
    if program.notes:
        lines += ["", "Notes", *(f"- {note.text}" for note in program.notes)]
    return "\n".join(lines) + "\n"


def compile_report_text(estimate: Estimate) -> str:
    """Return the compile report in the original's layout. Every figure is simulated."""
    rows = [
        ("Samples/s", _rate(estimate.samples_per_s)),
        ("Compute Samples/s", _rate(estimate.compute_samples_per_s)),
        ("Transmission Samples/s", _rate(estimate.transmission_samples_per_s)),
    ]
    return (
        "Estimated Overall Performance (simulated: a model of a CS-2, not a measurement)\n"
        "-------------------------------\n"
        + "".join(f"{name}: {value}\n" for name, value in rows)
        + f"\nOne step of {estimate.batch_size} samples: {estimate.flops:.3e} floating-point operations, "
        f"{format_bytes(estimate.transmitted_bytes)} over the links, "
        f"{format_seconds(estimate.step_s)} (simulated).\nAssumptions:\n"
        + "".join(f"- {text}\n" for text in estimate.assumptions)
    )


def _rate(per_s: float) -> str:
    """Return a rate with one decimal, as in the original. Small rates get two significant digits."""
    return f"{per_s:.1f}" if per_s >= 0.1 or not per_s else f"{per_s:.2g}"
