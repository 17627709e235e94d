"""The Program: the compiler makes it from a step's graph, and the runtime runs it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import add

import numpy as np

from cerebras_tensorflow.graph.micro_batches import EVERY, MicroBatches
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.variables import Variable

# Placeholder tokens of the graph's calls into the weight store. The runtime replaces them with its own.
LOAD_TOKEN = "cs_load"  # a read-only value
PRIVATE_LOAD_TOKEN = "cs_private_load"  # a private copy, which an op may overwrite
GATHER_TOKEN = "cs_gather"
STORE_TOKEN = "cs_store"
SLICE_LOAD_TOKEN = "cs_load_rows"  # rows start to stop
SLICE_STORE_TOKEN = "cs_store_rows"
UNCHECKED_LOAD_TOKEN = "cs_load_unchecked"  # as LOAD_TOKEN; the update verifies the checksum in the same step
# Of an update by a function. Their first argument has the indices of the variables, and the rows: start and stop.
FETCH_TOKEN = "cs_fetch"  # reads the rows ahead and keeps them
TAKE_TOKEN = "cs_take"  # the rows that were fetched, which the update may overwrite
PUT_TOKEN = "cs_put"  # stores the rows
UPDATE_FUNCTION = "cs_update_"  # begins the name of such a function, and of each of its nodes
LEND_TOKEN = "cs_lend_rows"  # rows start to stop as a flat array with one extra element; the update may overwrite it

# A read of the global step after all updates of a training step.
GLOBAL_STEP_AFTER = "cs_global_step_after"
RESIDENT = "cs_resident/"  # scope of the nodes that set and read resident variables


@dataclass(frozen=True)
class WeightSpec:
    """Name, type and size of a variable that the runtime keeps.

    Attributes:
        name: Name in the checkpoint.
        dtype: NumPy's name; "bfloat16" from ml_dtypes.
        shape: Its shape; () if the graph does not fix it.
        num_bytes: Its size; 0 if the graph does not fix its shape.
        is_fixed: Whether the graph fixes the shape. A variable with `validate_shape=False` may change it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    is_fixed: bool = True

    @classmethod
    def of(cls, variable: Variable) -> WeightSpec:
        """Return the spec of a variable."""
        is_fixed = variable.shape is not None
        return cls(variable.name, variable.dtype.name, variable.shape or (), variable.num_bytes, is_fixed)


class Residence(str, enum.Enum):
    """Where the streamed weights of a step are kept between their uses."""

    HOST_MEMORY = "host memory"
    """Variables in host memory, without a store. Loads read the variable; the optimizer updates it in place."""
    MAPPED_FILE = "mapped file"
    """A mapped file that fits into memory. A load returns a view of it; slices are updated in place."""
    MEMORY_STORE = "memory store"
    """A store in this process's memory, for one of several CSX. Loads and updates are those of a mapped file."""
    STORE = "store"
    """A file or the weight servers. A load copies into memory; an update writes back."""

    @property
    def is_in_place(self) -> bool:
        """Whether a store lends its own memory: loads refer to it, and updates change it."""
        return self in (Residence.MAPPED_FILE, Residence.MEMORY_STORE)


@dataclass(frozen=True)
class Note:
    """Why a variable stays in memory although it is large enough to be streamed.

    Attributes:
        variable: Its name in the checkpoint.
        num_bytes: Its size.
        reason: A clause that names the ops.
        ops: The ops in the reason, the most important one first.
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
        kind: "load" (the step reads it), "gather" (only the rows in the batch), "update" (load, change, store),
            "replace" (change what a load still holds, store), "spill" (write a value to the store), "fill" (read it
            back).
        weight: Index into Program.stored.
        node: The op that moves it.
        num_bytes: Bytes held from the move until the last finisher has run.
        first: Position of the first use in the order of ops. Slices of one op have fractional positions.
        last: Position of the last use.
        finishers: Ops that end its use, with their positions. The memory is free after the last one.
        row_bytes: Bytes of the rows that a gather reads, if none repeats; 0 if it is no gather, or they are unknown.
    """

    kind: str
    weight: int
    node: str
    num_bytes: int
    first: float
    last: float
    finishers: tuple[tuple[str, float], ...] = ()
    row_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight that it moves; of a gather, as if no row repeats."""
        return self.row_bytes if self.kind == "gather" else self.num_bytes


@dataclass(frozen=True)
class Program:
    """A step ready to run.

    Attributes:
        mode: "pipelined" or "weight_streaming".
        graph_def: The graph to run. Original ops keep their names.
        step_node: Op to run with the train op; it ends when all updates have reached the store. None: not needed.
        streamed: Weights in the store, by the index in the graph's calls.
        spilled: Values that the step keeps in the store between two uses. Their indices follow those of the weights.
        resident: Variables in the session.
        events: The schedule, in order; empty in pipelined mode.
        window_bytes: Bytes of streamed weights that may be in memory at a time.
        overhead_bytes: Estimated memory [B] of kernels, queues, allocators and the graph, without values and weights.
        residence: Where the streamed weights are kept.
        order: Names of the ops in the order of the schedule; empty if there is no schedule.
        value_curve: Bytes of live values while each op of the order runs, from static shapes.
        held_curve: Peak bytes that moves hold in addition, while each op of the order runs; empty if nothing moves.
        notes: Large variables that stay in memory, and why.
        micro_batches: How a step is computed in micro-batches; None: at once.
        owners: The CSX that holds and updates each of `streamed`, or EVERY. Empty: every CSX holds all.
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
    micro_batches: MicroBatches | None = None
    owners: tuple[int, ...] = ()

    def repeats(self, event: Event) -> int:
        """Return how many times a step makes a move. A step in micro-batches repeats its first part."""
        plan = self.micro_batches
        return plan.count if plan is not None and event.first < plan.num_first else 1

    @property
    def step_bytes(self) -> int:
        """Bytes that one step moves between the weight store and memory. An update reads and writes."""
        return sum(event.num_bytes * (2 if event.kind == "update" else 1) for event in self.events)

    @property
    def bytes_read_of_each(self) -> tuple[int, ...]:
        """Bytes that one step reads of each of `stored`."""
        read = [0] * len(self.stored)
        for event in self.events:
            if event.kind not in ("replace", "spill"):
                read[event.weight] += event.weight_bytes * self.repeats(event)
        return tuple(read)

    @property
    def value_bytes(self) -> int:
        """Peak bytes of live values; 0 if their sizes are unknown."""
        return max(self.value_curve, default=0)

    @property
    def moved_bytes(self) -> int:
        """Bytes that moves add to the peak of live values."""
        if not self.held_curve:
            return 0
        values = self.value_curve or (0,) * len(self.held_curve)
        return max(map(add, values, self.held_curve)) - self.value_bytes

    @property
    def variables(self) -> tuple[WeightSpec, ...]:
        """Variables in the session, by the index in the names of their access nodes."""
        return (*self.resident, *self.streamed) if self.residence is Residence.HOST_MEMORY else self.resident

    @property
    def needs_store(self) -> bool:
        """Whether a run of the Program needs a weight store, for weights or for spilled values alone."""
        return bool(self.stored) and self.residence is not Residence.HOST_MEMORY

    @property
    def stored(self) -> tuple[WeightSpec, ...]:
        """Everything in the store, by the index in the graph's calls and in the events."""
        return (*self.streamed, *self.spilled)

    def is_on_every_csx(self, index: int) -> bool:
        """Whether every CSX has room for something in the store. Each has its own spilled values."""
        return index >= len(self.owners) or self.owners[index] == EVERY

    def is_held_by(self, rank: int, index: int) -> bool:
        """Whether a CSX has room for something in the store."""
        return self.is_on_every_csx(index) or self.owners[index] == rank

    def stored_by(self, rank: int) -> tuple[WeightSpec, ...]:
        """Return what one CSX has room for, of everything in the store."""
        return tuple(spec for index, spec in enumerate(self.stored) if self.is_held_by(rank, index))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all variables, without totals of gradients."""
        totals = {gradient.stored for gradient in self.micro_batches.gradients} if self.micro_batches else set()
        streamed = sum(spec.num_bytes for index, spec in enumerate(self.streamed) if index not in totals)
        return streamed + sum(spec.num_bytes for spec in self.resident)


def resident_access_nodes(variables: list[Variable], dtypes: dict[str, int]) -> list[NodeDef]:
    """Return nodes through which the runtime sets and reads resident variables; names as in the functions below."""
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
    """Name of the placeholder for the value of a resident variable."""
    return f"{RESIDENT}{index}/value"


def assign_name(index: int) -> str:
    """Name of the op that sets a resident variable from its placeholder."""
    return f"{RESIDENT}{index}/assign"


def read_name(index: int) -> str:
    """Name of the op that reads a resident variable."""
    return f"{RESIDENT}{index}/read"


def dtype_from_name(name: str) -> np.dtype:
    """Return the NumPy dtype of a spec, also for bfloat16 and the other types of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
