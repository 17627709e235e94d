"""A step's graph while it is rewritten: what goes, what is new, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cerebras_tensorflow.compiler.nodes.store_calls import INT64, call_node, index_node
from cerebras_tensorflow.graph.conditionals import Deadness
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, NodeTable
from cerebras_tensorflow.graph.ordering import first_reads
from cerebras_tensorflow.graph.program import Event
from cerebras_tensorflow.graph.variables import Variable, VariableAccess


@dataclass
class VariableUses:
    """The uses of one streamed variable."""

    index: int
    variable: Variable
    before: list[VariableAccess] = field(default_factory=list)  # reads of the value that the step starts with
    after: list[VariableAccess] = field(default_factory=list)  # reads of the updated value

    @classmethod
    def of(cls, index: int, variable: Variable, table: NodeTable) -> VariableUses:
        before, after = first_reads(table, variable)
        return cls(index, variable, before, after)

    def value_uses(self, table: NodeTable) -> list[tuple[VariableAccess, str]]:
        """Pairs (read, op that uses the value read)."""
        return [
            (read, user)
            for read in self.before
            if read.op == "ReadVariableOp"
            for user in table.consumers[read.node]
            if any(endpoint.node == read.node for endpoint in table.data_inputs(user))
        ]


class Emission:
    """The nodes of one program as they are made.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        plans: Of the streamed variables.
        outputs: Of each op.

    Attributes:
        position: Of each op in the order.
        deadness: Of the nodes, the new ones included.
        dropped: Original nodes that are replaced.
        dropped_reads: Those of them that read a streamed variable.
        sliced: Ops and assigns that are done in slices.
        replaced: (user, value) -> what the user takes instead.
        extra_control: Original node -> what it waits for beside its own inputs.
        new: New nodes by name.
        ends: What the step waits for.
        events: Moves of weights and values.
        inserted: Original node -> new ones before it in the order.
    """

    def __init__(
        self, table: NodeTable, order: list[str], plans: Sequence[VariableUses], outputs: Mapping[str, Sequence[Output]]
    ) -> None:
        self.table = table
        self.position = {name: position for position, name in enumerate(order)}
        self.plans = plans
        self.outputs = outputs
        self.deadness = Deadness(table, order)
        self.dropped: set[str] = set()
        self.dropped_reads: set[str] = set()
        self.sliced: set[str] = set()
        self.replaced: dict[tuple[str, Endpoint], str] = {}
        self.extra_control: dict[str, list[str]] = {}
        self.new: dict[str, NodeDef] = {}
        self.ends: list[str] = []
        self.events: list[Event] = []
        self.inserted: dict[str, list[str]] = {}

    def add(self, node: NodeDef) -> str:
        """Add a node; return its name."""
        self.new[node.name] = node
        return node.name

    def input(self, user: str, endpoint: Endpoint) -> str:
        """What an op takes in place of an input."""
        return self.replaced.get((user, endpoint), str(endpoint))

    def control_of(self, name: str) -> list[str]:
        """What a node waits for that had a control edge from a node, or took a read's value.

        Of a read that is replaced, that is what the read itself waited for: its value is loaded whenever it fits.
        What the read had to precede waits for the uses of its value already.
        """
        if name not in self.dropped or self.table.nodes[name].op != "ReadVariableOp":
            return [name]
        before = [endpoint.node for endpoint in self.table.inputs[name] if endpoint.is_control]
        return [control for node in before for control in self.control_of(node)]

    def controls(self, name: str) -> list[str]:
        """What an op waits for, beside its inputs, as control edges."""
        controls = [endpoint.node for endpoint in self.table.inputs[name] if endpoint.is_control]
        kept = [control for node in controls if node not in self.sliced for control in self.control_of(node)]
        return [f"^{control}" for control in dict.fromkeys(kept)]

    def waits(self, write: str) -> list[str]:
        """What the update of a weight waits for, beside its inputs, as control edges."""
        node = self.table.nodes[write]
        control = [text for text in node.input if text.startswith("^") and text[1:] not in self.dropped_reads]
        return control + [f"^{name}" for name in dict.fromkeys(self.extra_control.pop(write, ()))]

    def weight_call(
        self, name: str, token: str, plan: VariableUses, switches: tuple[Endpoint, ...], inputs: list[tuple[str, int]]
    ) -> NodeDef:
        """A call about a variable, as `call`."""
        dtype = self.table.nodes[plan.variable.handle].attr["dtype"].type
        return self.call(name, token, plan.index, dtype, switches, inputs)

    def call(
        self,
        name: str,
        token: str,
        stored: int,
        dtype: int,
        switches: tuple[Endpoint, ...],
        inputs: list[tuple[str, int]],
    ) -> NodeDef:
        """A call into the weight store: load, gather(ids) or store(value), dead where its branch is not taken.

        Args:
            name: Of the new node.
            token: Which call.
            stored: Index into Program.stored.
            dtype: Of what is stored there, as TensorFlow's number.
            switches: The branches that it is in.
            inputs: Further arguments, with their dtypes.
        """
        index = self.switched(name, self.add(index_node(name, stored)), INT64, switches)
        node = call_node(name, token, index, dtype, inputs)
        self.add(node)
        return node

    def switched(self, name: str, value: str, dtype: int, switches: tuple[Endpoint, ...]) -> str:
        """A value that is dead where the branches it is for are not taken."""
        for level, endpoint in enumerate(switches):
            predicate = self.table.data_inputs(endpoint.node)[1]
            switch = NodeDef(name=f"{name}/cs_switch_{level}", op="Switch", input=[value, str(predicate)])
            switch.attr["T"].type = dtype
            value = str(Endpoint(self.add(switch), endpoint.port))
        return value
