"""The Program: what the compiler makes of a step's graph and the runtime runs."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import add

import numpy as np

from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.variables import Variable

# Tokens of the graph's calls into the weight store; the runtime puts its own in their place.
LOAD_TOKEN = "cs_load"  # a value that nothing writes over
PRIVATE_LOAD_TOKEN = "cs_private_load"  # a value that an op may write over: a copy of its own
GATHER_TOKEN = "cs_gather"
STORE_TOKEN = "cs_store"
SLICE_LOAD_TOKEN = "cs_load_rows"  # rows start to stop
SLICE_STORE_TOKEN = "cs_store_rows"
UNCHECKED_LOAD_TOKEN = "cs_load_unchecked"  # as LOAD_TOKEN, of a weight whose update checks it in the same step
LEND_TOKEN = "cs_lend_rows"  # rows start to stop as a flat array, one element longer, that the update may write over

# A read of the global step after everything that a training step changes.
GLOBAL_STEP_AFTER = "cs_global_step_after"


@dataclass(frozen=True)
class WeightSpec:
    """One variable as the runtime has to keep it."""

    name: str  # in the checkpoint
    dtype: str  # NumPy's name; "bfloat16" from ml_dtypes
    shape: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, variable: Variable) -> WeightSpec:
        """Return the spec of a graph's variable, whose shape must be known."""
        assert variable.shape is not None
        return cls(variable.name, variable.dtype.name, variable.shape, variable.num_bytes)


class Residence(str, enum.Enum):
    """Where the streamed weights of a step lie between their uses."""

    HOST_MEMORY = "host memory"
    """Variables in the host's memory. No store: a load reads the variable, and the optimizer updates it in place."""
    MAPPED_FILE = "mapped file"
    """A file that fits into memory and is mapped. A load is a reference into it, and slices are updated in place."""
    STORE = "store"
    """A file or the weight servers. A load copies into memory, and an update writes back."""


@dataclass(frozen=True)
class Note:
    """Why a large variable stays in memory although it could have been streamed by its size.

    Attributes:
        variable: Its name in the checkpoint.
        num_bytes: Its size.
        reason: A clause that names the ops.
        ops: The ops that the reason names, the most telling one first.
    """

    variable: str
    num_bytes: int
    reason: str
    ops: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The note as a sentence, without its period."""
        return f"{self.variable} stays in memory ({self.num_bytes} B): {self.reason}"


@dataclass(frozen=True)
class Event:
    """One move of a weight in a weight-streaming schedule.

    Attributes:
        kind: "load" (read by the step), "gather" (only the rows that the batch names), "update" (load, change, store),
            "spill" (a value goes to the store), "fill" (it comes back).
        weight: Index into Program.stored.
        node: The op that moves it.
        num_bytes: Bytes held from the move until the last finisher has run.
        first: Position in the order of the step's ops of its first use; slices of one op lie between two ops.
        last: Position of its last use.
        finishers: Ops after which it is free, with their positions.
    """

    kind: str
    weight: int
    node: str
    num_bytes: int
    first: float
    last: float
    finishers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Program:
    """A step ready to run.

    Attributes:
        mode: "pipelined" or "weight_streaming".
        graph_def: The graph to run. Names of the original ops are kept.
        step_node: What to run beside the train op so that every update has reached the store; None if nothing.
        streamed: Weights in the store, by the index that the graph's calls carry.
        spilled: Values that wait in the store, after the weights, between two of their uses.
        resident: Variables in the session.
        events: The schedule, in order; empty when pipelined.
        window_bytes: Bytes of weights that the schedule lets be in memory at a time.
        overhead_bytes: What kernels, queues and allocators take beside values and weights, estimated.
        residence: Where the streamed weights lie.
        order: Names of the ops in the order that the schedule is made for; empty if it was not needed.
        value_curve: Bytes of values between ops while each op of the order runs, from static shapes.
        held_curve: Most bytes that moves hold beside these while each op of the order runs; empty if nothing moves.
        notes: Large variables that stay in memory, and why.
    """

    mode: str
    graph_def: GraphDef
    step_node: str | None
    streamed: tuple[WeightSpec, ...]
    resident: tuple[WeightSpec, ...]
    events: tuple[Event, ...] = ()
    window_bytes: int = 0
    order: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    spilled: tuple[WeightSpec, ...] = ()
    value_curve: tuple[int, ...] = ()
    held_curve: tuple[int, ...] = ()
    overhead_bytes: int = 0
    residence: Residence = Residence.STORE

    @property
    def value_bytes(self) -> int:
        """Most bytes of values between ops at a time; 0 if their sizes were not known."""
        return max(self.value_curve, default=0)

    @property
    def moved_bytes(self) -> int:
        """Bytes that moves add to the values between ops at the op where both together take most."""
        if not self.held_curve:
            return 0
        values = self.value_curve or (0,) * len(self.held_curve)
        return max(map(add, values, self.held_curve)) - self.value_bytes

    @property
    def variables(self) -> tuple[WeightSpec, ...]:
        """What the session holds, by the index in the names of its access nodes."""
        return (*self.resident, *self.streamed) if self.residence is Residence.HOST_MEMORY else self.resident

    @property
    def needs_store(self) -> bool:
        """Whether a run of it needs a weight store."""
        return bool(self.streamed) and self.residence is not Residence.HOST_MEMORY

    @property
    def stored(self) -> tuple[WeightSpec, ...]:
        """All that a store holds, by the index that the graph's calls and the events carry."""
        return (*self.streamed, *self.spilled)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all variables."""
        return sum(spec.num_bytes for spec in (*self.streamed, *self.resident))


def resident_access_nodes(variables: list[Variable], dtypes: dict[str, int]) -> list[NodeDef]:
    """Return the nodes by which the runtime sets and reads resident variables (see the three name functions)."""
    nodes = []
    for index, variable in enumerate(variables):
        dtype = dtypes[variable.handle]
        value = NodeDef(name=value_name(index), op="Placeholder")
        value.attr["dtype"].type = dtype
        value.attr["shape"].shape.unknown_rank = True
        assign = NodeDef(name=assign_name(index), op="AssignVariableOp", input=[variable.handle, value.name])
        assign.attr["dtype"].type = dtype
        read = NodeDef(name=read_name(index), op="ReadVariableOp", input=[variable.handle])
        read.attr["dtype"].type = dtype
        nodes.extend([value, assign, read])
    return nodes


def value_name(index: int) -> str:
    """Placeholder that takes the value of a resident variable."""
    return f"cs_resident/{index}/value"


def assign_name(index: int) -> str:
    """Op that sets a resident variable from its placeholder."""
    return f"cs_resident/{index}/assign"


def read_name(index: int) -> str:
    """Op that reads a resident variable."""
    return f"cs_resident/{index}/read"


def dtype_from_name(name: str) -> np.dtype:
    """Return the NumPy dtype of a spec, bfloat16 and its kin included."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
