"""Plans a step from a model_fn and shapes: its bytes, its memory, its time here and on a simulated CS-2."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.compiler.memory_plan import MemoryPlan, plan_memory
from cerebras_tensorflow.compiler.step import compile_step
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.execution import micro_batch_size
from cerebras_tensorflow.estimator.execution.compile_model import (
    check_budget,
    network_of,
    streaming_options,
    warn_of_loops,
    workload_of,
)
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import Model, call_model_fn
from cerebras_tensorflow.estimator.training.ops import training_ops
from cerebras_tensorflow.estimator.training.sparsity.caller_sparsifier import choice_of
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.flops.count import flops_of_ops
from cerebras_tensorflow.graph.program import Program, Residence
from cerebras_tensorflow.perf.planned_timeline import StreamRates, plan_timeline
from cerebras_tensorflow.perf.timeline import COMPUTE, UPDATE, Timeline
from cerebras_tensorflow.planner.rates import Rates
from cerebras_tensorflow.planner.shapes import ShapeInputs
from cerebras_tensorflow.runtime.host.heap import trim_heap
from cerebras_tensorflow.system.wafer.figures import DEFAULT_RELEASE
from cerebras_tensorflow.system.wafer.layers import Network
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.sparse import sparse_network

_ONLY_WRITTEN = ("spill", "replace")  # kinds of moves that read nothing


@dataclass(frozen=True)
class StepPlan:
    """A compiled step and what it costs.

    Attributes:
        program: The Program.
        memory: Its memory plan.
        process_bytes: Memory of the process without the step, with its batches, which counts against the budget. 0
            without a budget.
        memory_budget: Most bytes of memory that the process may take. None: no limit.
        network: Its layers, for the model of the wafer.
        workload: What the run asks of the simulated systems.
        cs2: The simulated step.
        sparse_cs2: The same without the work of masked weights, at the last target; None: no weight is sparse.
        batch_size: Samples in a step.
        num_parameters: Elements of the trained variables.
        num_flops: Floating-point operations of a step, in matrix products and convolutions.
        op_flops: Floating-point operations of each op that has any.
        op_bytes: Bytes of each op's outputs.
        live: Bytes of values between ops while each op runs.
    """

    program: Program
    memory: MemoryPlan
    process_bytes: int
    memory_budget: int | None
    network: Network
    workload: Workload
    cs2: Simulation
    sparse_cs2: Simulation | None
    batch_size: int
    num_parameters: int
    num_flops: int
    op_flops: dict[str, int]
    op_bytes: dict[str, int]
    live: dict[str, int]

    @property
    def is_in_memory(self) -> bool:
        """Whether the weight store would be in memory. Otherwise it is on the disk."""
        return self.program.residence is Residence.HOST_MEMORY

    @property
    def read_bytes(self) -> int:
        """Bytes that a step reads from the store, without rows that gathers read."""
        program = self.program
        return sum(
            program.repeats(event) * event.num_bytes for event in program.events if event.kind not in _ONLY_WRITTEN
        )

    @property
    def written_bytes(self) -> int:
        """Bytes that a step writes to the store."""
        program = self.program
        return sum(
            program.repeats(event) * event.num_bytes
            for event in program.events
            if event.kind in ("update", *_ONLY_WRITTEN)
        )


def plan_step(
    model_fn: Callable[..., Any],
    inputs: ShapeInputs,
    params: Any,
    config: Any,
    mode: str,
    execution_mode: str,
    settings: CSConfig,
    release: str = DEFAULT_RELEASE,
) -> StepPlan:
    """Compile one step of a model without allocating its weights.

    Args:
        model_fn: As for the Estimator.
        inputs: The batch, as shapes.
        params: As for the Estimator.
        config: RunConfig.
        mode: "train", "eval" or "infer".
        execution_mode: "weight_streaming" or "pipelined".
        settings: Settings of the schedule and the weight store.
        release: Release of the software on the simulated systems.

    Raises:
        CompileError: If the graph cannot be compiled for the mode.
        PlacementError: If the model does not fit on the wafer, and the settings have no allow_oversize.
        ValueError: As in call_model_fn.
    """

    def attempt() -> StepPlan:
        return _plan_micro_batch(model_fn, inputs, params, config, mode, execution_mode, settings, release)

    if mode == ModeKeys.TRAIN:
        return micro_batch_size.first_that_fits(inputs, settings, params, attempt)
    micro_batch_size.cut(inputs, settings, params, mode)
    return attempt()


def _plan_micro_batch(
    model_fn: Callable[..., Any],
    inputs: ShapeInputs,
    params: Any,
    config: Any,
    mode: str,
    execution_mode: str,
    settings: CSConfig,
    release: str = DEFAULT_RELEASE,
) -> StepPlan:
    """Plan a step with the micro-batches of the inputs; see plan_step."""
    sparsity = choice_of(params, None) if mode == ModeKeys.TRAIN else None
    model = _call(
        functools.partial(call_model_fn, model_fn, inputs, mode, params, run_settings(config), False, sparsity)
    )
    step = training_ops(model).step if mode == ModeKeys.TRAIN else model.step(_outputs(model))
    names = {node.name for node in step.graph_def.node}
    outputs = {name: made for name, made in op_outputs(model.graph).items() if name in names}
    op_flops = flops_of_ops(model.graph, names).of_op
    num_parameters = sum(variable.shape.num_elements() for variable in _trained(model))
    network = network_of(model, [node.name for node in step.graph_def.node], step.train_node is not None)
    num_flops = model.inputs.micro_batches * sum(op_flops.values())
    # The batch of a plan is that of one system.
    num_csx = settings.num_csx or 1
    workload = replace(workload_of(model, execution_mode, settings), release=release, num_csx=num_csx)
    options = streaming_options(model, execution_mode, settings)
    warn_of_loops(step, outputs, settings)
    masked = {
        one.name: math.prod(one.shape) * network.sparsity[one.name]
        for one in model.sparse
        if one.name in network.sparsity
    }
    # Free the TensorFlow graph: it takes a gigabyte for a large model, and nothing below needs it.
    del model, names
    # A SwiGLU keeps it alive otherwise.
    tf_private.forget_custom_gradients(step.graph_def)
    gc.collect()
    trim_heap()
    program = compile_step(step, execution_mode, options, outputs)
    memory = plan_memory(program)
    if micro_batch_size.requested(settings, params, mode) == "auto":
        check_budget(execution_mode, options, memory)
    return StepPlan(
        program=program,
        memory=memory,
        process_bytes=options.process_bytes,
        memory_budget=options.memory_budget,
        network=network,
        workload=workload,
        cs2=simulate(network, workload),
        sparse_cs2=simulate(sparse_network(network, masked), workload) if masked else None,
        batch_size=inputs.batch_size,
        num_parameters=num_parameters,
        num_flops=num_flops,
        op_flops=op_flops,
        op_bytes={name: sum(output.num_bytes for output in made) for name, made in outputs.items()},
        live=dict(zip(program.order, program.value_curve, strict=True)),
    )


def _call(call: Callable[[bool], Model]) -> Model:
    """Call model_fn without initial values of variables; with them if it uses them itself.

    Args:
        call: Takes whether variables get initial values.
    """
    try:
        return call(False)
    except CerebrasError:
        raise
    except Exception:  # noqa: BLE001 (whatever follows in model_fn from a value that is None)
        pass
    return call(True)  # outside, so that an error of this call alone is shown


def timeline(plan: StepPlan, rates: Rates, title: str) -> Timeline:
    """Return the planned timeline on a machine of given rates.

    Args:
        plan: The plan.
        rates: Rates of the machine.
        title: Title of the timeline.
    """
    names = plan.program.order
    op_s = {
        name: max(
            plan.op_flops.get(name, 0) / rates.flops_per_s,
            2 * plan.op_bytes.get(name, 0) / rates.memory_bytes_per_s,
        )
        for name in names
        if plan.op_bytes.get(name, 0) and not name.endswith("/ReadVariableOp")
    }
    read, write = rates.disk_read_bytes_per_s, rates.disk_write_bytes_per_s
    if plan.is_in_memory:
        read = write = rates.memory_bytes_per_s
    return plan_timeline(
        _unrolled(plan.program), op_s, StreamRates(read, write, rates.memory_bytes_per_s), title, plan.live
    )


def _unrolled(program: Program) -> Program:
    """Return the Program with the order and events of its first part repeated for each micro-batch."""
    plan = program.micro_batches
    if plan is None:
        return program
    first = [event for event in program.events if event.first < plan.num_first]
    later = [event for event in program.events if event.first >= plan.num_first]
    moved = [(event, number * plan.num_first) for number in range(plan.count) for event in first]
    moved += [(event, (plan.count - 1) * plan.num_first) for event in later]
    events = tuple(
        replace(
            event,
            first=event.first + offset,
            last=event.last + offset,
            finishers=tuple((name, position + offset) for name, position in event.finishers),
        )
        for event, offset in moved
    )
    order = (*program.order[: plan.num_first] * plan.count, *program.order[plan.num_first :])
    return replace(program, events=events, order=order)


def step_s(line: Timeline) -> tuple[float, float]:
    """Return the time of a step, and how much of it is spent computing [s]."""
    return line.end_s, line.busy_s((COMPUTE, UPDATE))


def _trained(model: Model) -> list[Any]:
    return list(model.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES))


def _outputs(model: Model) -> list[Any]:
    tensors = [model.spec.loss] if model.spec.loss is not None else []
    predictions = model.spec.predictions
    if predictions is not None:
        tensors += tf.nest.flatten(predictions)
    for value, update in (getattr(model.spec, "eval_metric_ops", None) or {}).values():
        tensors += [value, update]
    return tensors
