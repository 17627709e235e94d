"""The variables of a step's graph: their reads and writes, and whether they can be streamed."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable
from cerebras_tensorflow.tf_private import op_definition

_KNOWN_READS = frozenset({"ReadVariableOp", "ResourceGather", "VariableShape"})
"""Reads of a form that we know how to stream."""
READ_OPS = _KNOWN_READS | {"ReadVariableXlaSplitND", "ResourceGatherNd", "_ReadVariablesOp"}
# A first write by these ops replaces the value, so it needs no load. All other writes modify the old value.
REPLACING_OPS = frozenset({"AssignVariableOp"})
MODIFYING_OPS = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "ResourceScatterAdd",
        "ResourceScatterSub",
        "ResourceScatterMul",
        "ResourceScatterDiv",
        "ResourceScatterMin",
        "ResourceScatterMax",
        "ResourceScatterUpdate",
        "ResourceScatterNdAdd",
        "ResourceScatterNdSub",
        "ResourceScatterNdUpdate",
    }
)
APPLY_PREFIXES = ("ResourceApply", "ResourceSparseApply")
# Stateful ops with a resource that change no variable: reads, and ops on resources of other kinds.
_UNCHANGING_OPS = READ_OPS | {
    "DisableCopyOnRead", "VarIsInitializedOp",
    "CloseSummaryWriter", "CreateSummaryFileWriter", "FlushSummaryWriter", "MakeIterator",
}  # fmt: skip
GENERATOR_OPS = frozenset(
    {
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulRandomBinomial",
        "RngSkip",
        "RngReadAndSkip",
    }
)
"""Ops that draw from a tf.random.Generator, and change its variable."""
_OTHER_RESOURCES = ("InitializeTable", "Iterator", "LookupTable", "Queue", "Stack", "TensorArray", "Write")


def is_known_write(op: str) -> bool:
    """Whether an op is a write of a form that we know how to stream or to leave out. `may_write` finds all writes."""
    return op in REPLACING_OPS or op in MODIFYING_OPS or op.startswith(APPLY_PREFIXES)


def may_write(op: str) -> bool:
    """Whether an op itself, not a function that it calls, may change a variable. Unknown ops may."""
    if op in _UNCHANGING_OPS or op.startswith(_OTHER_RESOURCES):
        return False
    definition = op_definition(op)
    if definition is None or not definition.is_stateful:
        return False  # no definition: the op is a function
    return any(argument.type == tf.resource.as_datatype_enum for argument in definition.input_arg)


def may_change_model(op: str) -> bool:
    """As `may_write`, but not of a tf.random.Generator: each micro-batch draws from it, one after the other."""
    return op not in GENERATOR_OPS and may_write(op)


@dataclass(frozen=True)
class VariableAccess:
    """One op that takes a variable's handle, and the Switch outputs on the way to it."""

    node: str
    op: str
    switches: tuple[Endpoint, ...] = ()


@dataclass(frozen=True)
class Obstacle:
    """Why a variable cannot be streamed: a clause, and the ops that it names, the most important one first."""

    reason: str
    ops: tuple[str, ...]


@dataclass
class Variable:
    """One resource variable of a step's graph."""

    handle: str  # name of its VarHandleOp
    name: str  # name in the checkpoint
    dtype: np.dtype
    shape: tuple[int, ...] | None  # None: not fully known
    accesses: list[VariableAccess] = field(default_factory=list)  # ops that read or write it themselves
    calls: list[VariableAccess] = field(default_factory=list)  # others: function calls, loops, draws of a Generator
    obstacle: Obstacle | None = None  # why it cannot be streamed

    @property
    def num_bytes(self) -> int:
        """Bytes of its value; 0 if the shape is unknown."""
        if self.shape is None:
            return 0
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def reads(self) -> list[VariableAccess]:
        """The accesses that read the variable."""
        return [access for access in self.accesses if access.op in READ_OPS]

    @property
    def writes(self) -> list[VariableAccess]:
        """The accesses that write the variable."""
        return [access for access in self.accesses if may_change_model(access.op)]


def find_variables(table: NodeTable, within: Container[str] | None = None) -> dict[str, Variable]:
    """Return the resource variables of a graph by the name of their VarHandleOp.

    Args:
        table: The graph.
        within: Names of the ops whose accesses count; None: all.

    If an op that we cannot stream (a write of a slice, a function call, a while loop) takes the handle, the variable
    gets an obstacle and stays resident.
    """
    variables: dict[str, Variable] = {}
    for name, node in table.nodes.items():
        if node.op != "VarHandleOp":
            continue
        shape = tf.TensorShape(node.attr["shape"].shape)
        variables[name] = Variable(
            handle=name,
            name=node.attr["shared_name"].s.decode() or name,
            dtype=np.dtype(tf.as_dtype(node.attr["dtype"].type).as_numpy_dtype),
            shape=tuple(shape.as_list()) if shape.is_fully_defined() else None,
        )
        _follow_handle(table, variables[name], Endpoint(name, 0), ())
        if within is not None:
            variables[name].accesses = [access for access in variables[name].accesses if access.node in within]
            variables[name].calls = [call for call in variables[name].calls if call.node in within]
    return variables


def step_writes(table: NodeTable, variable: Variable, sources: Collection[str]) -> list[VariableAccess]:
    """Return the writes of a variable that are not initializers: they depend on the batch, or on its old value.

    Args:
        table: The graph.
        variable: One of its variables.
        sources: Names of the batch's placeholders.
    """
    before = {*sources, *(read.node for read in variable.reads)}
    return [
        write
        for write in variable.writes
        if write.op not in REPLACING_OPS or before & set(table.ancestors([write.node]))
    ]


def _follow_handle(table: NodeTable, variable: Variable, source: Endpoint, switches: tuple[Endpoint, ...]) -> None:
    for consumer in table.consumers[source.node]:
        if source in table.data_inputs(consumer):
            _note_consumer(table, variable, consumer, switches)


def _note_consumer(table: NodeTable, variable: Variable, consumer: str, switches: tuple[Endpoint, ...]) -> None:
    """Add what an op does with the handle of a variable; follow the handle through the op if it passes it on."""
    op = table.nodes[consumer].op
    if op == "Identity":
        _follow_handle(table, variable, Endpoint(consumer, 0), switches)
        return
    if op == "Switch":
        for end in (Endpoint(consumer, 0), Endpoint(consumer, 1)):
            _follow_handle(table, variable, end, (*switches, end))
        return
    if op == "VarIsInitializedOp":
        return
    uses = variable.accesses if op in READ_OPS or may_change_model(op) else variable.calls
    uses.append(VariableAccess(consumer, op, switches))
    if op not in _KNOWN_READS and not is_known_write(op):
        variable.obstacle = Obstacle(f"op {consumer} ({op}) takes it as a whole", (consumer,))
