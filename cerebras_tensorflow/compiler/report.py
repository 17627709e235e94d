"""The compiler's results as readable text: schedule, memory plan, compile report."""

from __future__ import annotations

from cerebras_tensorflow.compiler.memory_plan import MemoryPlan
from cerebras_tensorflow.graph.program import Program, Residence
from cerebras_tensorflow.system.wafer.advice import advice, input_need
from cerebras_tensorflow.system.wafer.simulation import Simulation
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
        "`load`: reads a weight. `update`: loads a weight, runs the optimizer, stores the weight. `replace`: the same, "
        "with a weight that a `load` still holds. `gather`: reads only the batch's rows. `spill`: stores a value. "
        "`fill`: loads that value again.",
        "",
        f"{'number':>6}  {'kind':7}  {'bytes':>9}  {'first op':>8}  {'last op':>8}  weight",
    ]
    for number, event in enumerate(program.events):
        size = format_bytes(event.num_bytes) if event.num_bytes else "rows"
        name = program.stored[event.weight].name
        lines.append(f"{number:>6}  {event.kind:7}  {size:>9}  {int(event.first):>8}  {int(event.last):>8}  {name}")
    return "\n".join(lines) + "\n"


def memory_plan_text(program: Program, plan: MemoryPlan) -> str:
    """Return the memory plan."""
    lines = [f"Memory plan ({program.mode})", ""]
    lines += [f"{name:<34}{format_bytes(size):>10}  {what}" for name, size, what in memory_plan_rows(program, plan)]
    if program.notes:
        lines += ["", "Notes", *(f"- {note.text}" for note in program.notes)]
    return "\n".join(lines) + "\n"


def memory_plan_rows(program: Program, plan: MemoryPlan) -> list[tuple[str, int, str]]:
    """Return the parts of the memory plan: name, bytes, meaning."""
    spilled = f"{len(program.spilled)} values, read back before their next use" if program.spilled else "no values"
    store = f"{len(program.stored)} weights and values"
    window = "and values loaded ahead, while the op runs that needs most"
    if program.residence is Residence.HOST_MEMORY:
        window, store = "nothing is streamed", "not needed: all weights stay in memory"
    return [
        ("variables in memory", plan.resident_bytes, f"{len(program.variables)} variables"),
        ("streamed weights, at most", plan.window_bytes, window),
        ("values between ops, at most", plan.activation_bytes, "from static shapes"),
        ("kernels, queues, allocators, graph", plan.overhead_bytes, "estimated"),
        ("peak, without the process itself", plan.peak_bytes, "sum of the four"),
        ("values spilled to the store", plan.spilled_bytes, spilled),
        ("weight store", plan.store_bytes, store),
        ("a checkpoint, at most", program.weight_bytes, "disk space in model_dir, beside the weight store"),
    ]


def compile_report_text(simulation: Simulation) -> str:
    """Return the compile report in the original's layout. Every figure is simulated."""
    slow, fast = simulation.samples_range
    rows = [
        ("Samples/s", _rate(simulation.samples_per_s)),
        ("Compute Samples/s", _rate(simulation.compute_samples_per_s)),
        ("Transmission Samples/s", _rate(simulation.transmission_samples_per_s)),
    ]
    systems = f"{simulation.num_csx} CS-2" if simulation.num_csx > 1 else "one CS-2"
    parts = f", in {simulation.micro_batches} micro-batches" if simulation.micro_batches > 1 else ""
    limits = [f"{name} {format_seconds(seconds)}" for name, seconds in list(simulation.limits().items())[:3]]
    lines = [
        "Estimated Overall Performance (simulated: a model of a CS-2, not a measurement)",
        "-------------------------------",
        *(f"{name}: {value}" for name, value in rows),
        f"Range: {_rate(slow)} to {_rate(fast)} samples/s, from the ranges of the fitted and assumed figures",
        "",
        f"One step of {simulation.batch_size} samples on {systems}{parts}: {simulation.flops:.3e} floating-point "
        f"operations, {format_bytes(simulation.transmitted_bytes)} over the links, "
        f"{format_seconds(simulation.step_s)} (simulated).",
        f"Activations that stay on the wafer: {format_bytes(simulation.kept_bytes)}"
        + (", the rest is computed again in the backward pass." if simulation.is_recomputed else "."),
        f"What the step waits for: {', '.join(limits)}.",
        *advice(simulation),
        input_need(simulation),
        *([f"Not placed: {simulation.problem}"] if simulation.problem else []),
        "Assumptions:",
        *(f"- {text}" for text in simulation.assumptions),
        "",
        "The slowest layers (simulated)",
        *_slowest_rows(simulation),
    ]
    return "\n".join(lines) + "\n"


def _slowest_rows(simulation: Simulation) -> list[str]:
    rows = [f"{'time':>10}  {'limit':14}  {'kind':14}  layer"]
    for placed in simulation.slowest():
        time = placed.time
        rows.append(f"{format_seconds(time.seconds):>10}  {time.limit:14}  {placed.layer.kind:14}  {placed.layer.name}")
    return rows


def _rate(per_s: float) -> str:
    """Return a rate with one decimal, as in the original. Small rates get two significant digits."""
    return f"{per_s:.1f}" if per_s >= 0.1 or not per_s else f"{per_s:.2g}"
