"""Compile a model, or take its Program from the cache; check the memory budget."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cerebras_tensorflow.compiler import cache, report
from cerebras_tensorflow.compiler.memory.loops import loops_of_unknown_length
from cerebras_tensorflow.compiler.memory_plan import MemoryPlan, plan_memory
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step, compile_for_each_csx
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import CerebrasError, MemoryBudgetError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.estimator.model.source_lines import with_source_line
from cerebras_tensorflow.garbage import no_garbage_collection
from cerebras_tensorflow.graph.cost import Output, op_outputs
from cerebras_tensorflow.graph.exactness import OPS_OF_INPUTS, InexactOp, find_inexact_ops
from cerebras_tensorflow.graph.layers import find_network
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.program import Note, Program, Residence
from cerebras_tensorflow.logs import run_log, run_progress
from cerebras_tensorflow.runtime.host.memory import resident_bytes
from cerebras_tensorflow.runtime.input_workers.order import upstream
from cerebras_tensorflow.system.wafer.layers import Network
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.summary import summary_text
from cerebras_tensorflow.units import format_bytes, format_bytes_up

_LATE_STEP = 1_000_000  # of a schedule without an end
_ROUNDED_TO = 64_000_000  # [B] round up the memory of the process, so that runs of one model share a Program


class Estimate:
    """The simulated step on a CS-2, made on first use.

    Args:
        find: Returns its layers. It refers to the graph.
        workload: What the run asks of the simulated systems.
    """

    def __init__(self, find: Callable[[], Network], workload: Workload) -> None:
        self._find: Callable[[], Network] | None = find
        self.workload = workload

    def let_go_of_graph(self) -> None:
        """Find the layers, unless this was done before. The estimate then refers to no graph."""
        if self._find is not None:
            self._layers, self._find = self._find(), None

    @functools.cached_property
    def _made(self) -> tuple[Network, Simulation]:
        self.let_go_of_graph()
        return _simulated(self._layers, self.workload)

    @property
    def network(self) -> Network:
        """The layers, for the model of the wafer."""
        return self._made[0]

    @property
    def simulation(self) -> Simulation:
        """The simulated step."""
        return self._made[1]

    def texts(self) -> dict[str, str]:
        """Return file name -> text of the reports."""
        return {
            "compile_report.txt": report.compile_report_text(self.simulation),
            "model_summary.txt": summary_text(self.network, self.workload.mode),
        }


@dataclass(frozen=True)
class Compiled:
    """A compiled step.

    Attributes:
        program: The Program. If several CSX share the weights, it is that of the first one.
        others: The Programs of the CSX after the first one, if the CSX share the weights.
        compile_s: Time it took [s]; 0 if it came from the cache.
        folder: Its tfcs_<checksum> folder; None if nothing was written.
        estimate: The simulated step on a CS-2.
    """

    program: Program
    compile_s: float
    folder: Path | None
    estimate: Estimate
    others: tuple[Program, ...] = ()

    def write_estimate(self) -> None:
        """Write the reports of the simulated step to the folder of the Program."""
        if self.folder is not None:
            cache.renew_texts(self.folder, self.estimate.texts())


def compile_model(
    model: Model,
    step: Step,
    mode: str,
    settings: CSConfig,
    compile_dir: str | None,
    is_for_cs: bool = False,
    estimates_later: bool = False,
) -> Compiled:
    """Compile a step, or take it from the cache.

    Args:
        model: The model of the step.
        step: The step.
        mode: Execution mode.
        settings: The run's CSConfig.
        compile_dir: Parent of the tfcs_<checksum> folder; None: compile in memory and write nothing.
        is_for_cs: Whether to refuse a model that does not fit on the wafer. A run on the CPU alone is not refused.
        estimates_later: Whether the caller writes the reports of the simulated step at the end of its run, so that the
            run starts sooner. A run on a CS does not wait with them.

    Raises:
        PlacementError: If the model does not fit on the wafer, is_for_cs, and csconfig has no allow_oversize.
    """
    estimate = _estimate_of(model, step, mode, settings, is_for_cs)
    estimates = {} if estimates_later and not is_for_cs else estimate.texts()
    step = replace(step, is_shared=mode == WEIGHT_STREAMING and step.num_csx > 1 and step.train_node is not None)
    options = streaming_options(model, mode, settings, step.is_shared)
    begin = time.perf_counter()
    folder = cache.folder(compile_dir, cache.checksum(step, mode, options)) if compile_dir else None
    cached = _cached(folder, step) if folder else None
    if settings.model_summary:
        run_log.info("%s", estimate.texts()["model_summary.txt"])
    if folder is not None and cached is not None:
        program, *others = cached
        cache.renew_texts(folder, estimates)  # the model of the machine may have changed since
        _warn_of_notes(program, model)
        run_log.info("Cached compilation found for this model configuration")
        return Compiled(program, 0.0, folder, estimate, tuple(others))
    with run_progress("Compiling"), no_garbage_collection():
        program, *others = compile_for_each_csx(step, mode, options, outputs := op_outputs(model.graph))
    compiled_s = time.perf_counter() - begin
    _warn_of_notes(program, model)
    warn_of_loops(step, outputs, settings)
    plan = plan_memory(program)
    check_budget(mode, options, plan)
    if folder is not None:
        texts = {
            "schedule.txt": report.schedule_text(program),
            "memory_plan.txt": report.memory_plan_text(program, plan),
        }
        is_saved = cache.save(folder, program, texts | estimates)
        if step.is_shared:
            is_saved = is_saved and all(
                cache.save(_folder_of(folder, rank), other, {}) for rank, other in enumerate(others, 1)
            )
        if not is_saved:
            folder = None
    own = tuple(others) if step.is_shared else ()
    return Compiled(program, compiled_s, folder, estimate, own)


def _estimate_of(model: Model, step: Step, mode: str, settings: CSConfig, is_for_cs: bool) -> Estimate:
    """Return the estimate of a step. It refers to the model's graph until its layers are found."""
    workload = workload_of(model, mode, settings)
    workload = replace(workload, allow_oversize=settings.allow_oversize or not is_for_cs)
    names = frozenset(node.name for node in step.graph_def.node)
    return Estimate(functools.partial(_layers_of, model, names, step.train_node is not None), workload)


def _cached(folder: Path, step: Step) -> list[Program] | None:
    """Return the Programs of all CSX from the cache; None if one is missing."""
    folders = [folder, *(_folder_of(folder, rank) for rank in range(1, step.num_csx if step.is_shared else 1))]
    programs = []
    for one in folders:
        program = cache.load(one)
        if program is None:
            return None
        programs.append(program)
    return programs


def _folder_of(folder: Path, rank: int) -> Path:
    """Return the cache folder of a CSX after the first one."""
    return folder.with_name(f"{folder.name}_csx{rank}")


def _layers_of(model: Model, names: Collection[str], is_training: bool) -> Network:
    """Return the layers of a step. A fault of the estimate does not cost a run: there are then no layers."""
    try:
        return network_of(model, names, is_training)
    except CerebrasError:
        raise
    except Exception as exc:  # noqa: BLE001 (any fault of the estimate)
        return _unknown(is_training, exc)


def _simulated(network: Network, workload: Workload) -> tuple[Network, Simulation]:
    """Return the layers of a step, and its simulation. A fault of the estimate does not cost a run."""
    try:
        return network, simulate(network, workload)
    except CerebrasError:
        raise
    except Exception as exc:  # noqa: BLE001 (any fault of the estimate)
        unknown = _unknown(network.is_training, exc)
        return unknown, simulate(unknown, workload)


def _unknown(is_training: bool, fault: Exception) -> Network:
    run_log.warning("The simulated speed of this step is unknown (%s: %s).", type(fault).__name__, fault)
    return Network((), is_training, 0.0)


def _warn_of_notes(program: Program, model: Model) -> None:
    of_input = {above.name for tensor in model.inputs.tensors for above in upstream(tensor.op)}
    inexact = find_inexact_ops(program.graph_def)
    notes: list[Note | InexactOp] = [
        *program.notes,
        *(one for one in inexact if one.op not in OPS_OF_INPUTS or one.name not in of_input),
    ]
    for note in notes:
        run_log.warning("%s.", with_source_line(note, model.graph))


def warn_of_loops(step: Step, outputs: Mapping[str, Sequence[Output]], settings: CSConfig) -> None:
    """Warn of loops whose memory is unknown, if the memory has a budget."""
    loops = loops_of_unknown_length(NodeTable(step.graph_def), outputs) if settings.memory_budget is not None else []
    if loops:
        run_log.warning(
            "memory_budget: only a run can tell the number of iterations of %s, so the plan counts one, and the run "
            "may take more memory. Give tf.while_loop a constant bound, or maximum_iterations.",
            ", ".join(loops),
        )


def streaming_options(model: Model, mode: str, settings: CSConfig, is_shared: bool = False) -> StreamingOptions:
    """Return the compile options of a run. They depend on the settings and on the memory that is free now."""
    budget = settings.memory_budget
    assert not isinstance(budget, str)  # CSConfig has converted text to bytes
    weights = model.saved_names().values()
    weight_bytes = sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in weights if v.shape.is_fully_defined())
    is_streaming = mode == WEIGHT_STREAMING
    taken = 0
    if budget is not None:
        rounded = -(-resident_bytes() // _ROUNDED_TO) * _ROUNDED_TO  # part of the cache's key
        taken = rounded + model.inputs.bytes_in_memory
    return StreamingOptions(
        settings.min_stream_bytes,
        settings.stream_window_bytes,
        memory_budget=budget,
        process_bytes=taken,
        residence=store_choice.choose_residence(weight_bytes, settings, is_shared) if is_streaming else Residence.STORE,
    )


def check_budget(mode: str, options: StreamingOptions, plan: MemoryPlan) -> None:
    """Check a pipelined step against the memory budget. The compiler has already made a streamed step fit.

    Raises:
        MemoryBudgetError: If the step needs more memory than the budget.
    """
    needed = options.process_bytes + plan.peak_bytes
    if mode != WEIGHT_STREAMING and options.memory_budget is not None and needed > options.memory_budget:
        raise MemoryBudgetError(
            f"memory_budget is {format_bytes(options.memory_budget)}, and this step needs {format_bytes_up(needed)} in "
            f"pipelined mode, which keeps all weights ({format_bytes(plan.resident_bytes)}) in memory. Raise "
            "memory_budget to that, set micro_batch_size, or use weight streaming: csrun_wse python-ws run.py …",
            needed,
        )


def workload_of(model: Model, mode: str, settings: CSConfig) -> Workload:
    """Return what a run of the model asks of the simulated systems. Pipelined mode simulates one of them."""
    inputs = model.inputs
    batch_size = _batch_size(model)
    return Workload(
        mode,
        -(-inputs.micro_batches * batch_size // inputs.num_csx),
        num_csx=inputs.num_csx if mode == WEIGHT_STREAMING else 1,
        micro_batch_size=batch_size if inputs.parts > 1 else None,
        allow_oversize=settings.allow_oversize,
    )


def network_of(model: Model, names: Collection[str], is_training: bool) -> Network:
    """Return the layers of a step, for the model of the wafer.

    Args:
        model: The model.
        names: Names of the step's ops.
        is_training: Whether the step has a train op.
    """
    batch_size = _batch_size(model)
    inputs = {tensor.name: tensor for tensor in model.inputs.tensors if tensor.shape.is_fully_defined()}
    batch_bytes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in inputs.values())
    network = find_network(model.graph, names, batch_size, batch_bytes, is_training)
    return replace(network, sparsity=_target_sparsity(model))


def _target_sparsity(model: Model) -> dict[str, float]:
    """Return the share of zeros of each sparse weight that an algorithm masks, at the last change of its mask.

    A weight is left out if this is unknown: its schedule rises to 1 unless the run ends before.
    """
    shares: dict[str, float] = {}
    for weight in model.sparse:
        if weight.algorithm is not None:
            end = _LATE_STEP if model.last_step is None else model.last_step
            last = weight.algorithm.update_steps.last(end if weight.is_trained else 0)
            share = 0.0 if last is None else float(weight.algorithm.target(last))
            shares |= {weight.name: share} if share < 1 else {}
    return shares


def _batch_size(model: Model) -> int:
    """Return the samples that the graph takes at a time."""
    dims = [tensor.shape.as_list()[0] for tensor in model.inputs.tensors if tensor.shape.rank]
    return int(dims[0] or 1) if dims else 1
