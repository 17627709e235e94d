"""The graph of one Program while it is rewritten: dropped nodes, new nodes, and control edges."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import chain

from cerebras_tensorflow.compiler.nodes.store_calls import INT64, call_node, index_node
from cerebras_tensorflow.compiler.nodes.uses import VariableUses
from cerebras_tensorflow.graph.conditionals import Deadness
from cerebras_tensorflow.graph.constants import equal_constants, take_instead
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, FunctionDef, GraphDef, NodeDef, NodeTable
from cerebras_tensorflow.graph.program import Event


class Emission:
    """The nodes of one Program as they are made. It changes only through its methods.

    The class has more than 20 methods: each is one change or one question, and they share the same containers.

    Args:
        table: The original graph.
        order: All its nodes in the order in which they run.
        outputs: Outputs of each op.
        reads: Reads of streamed variables. They are dropped; loads replace them.
        sliced: Ops and assigns that are done in slices.
        replaced: (user, endpoint) -> the tensor that the user takes in place of the endpoint.

    Attributes:
        table: The original graph.
        outputs: Outputs of each op.
        position: Position of each original op in the order.
        sliced: Ops and assigns that are done in slices.
        deadness: Knows which nodes, original or new, may not run, and how to wait for them.
    """

    def __init__(
        self,
        table: NodeTable,
        order: Sequence[str],
        outputs: Mapping[str, Sequence[Output]],
        reads: Collection[str] = (),
        sliced: Container[str] = (),
        replaced: Mapping[tuple[str, Endpoint], str] | None = None,
    ) -> None:
        self.table = table
        self.outputs = outputs
        self.position: Mapping[str, int] = {name: position for position, name in enumerate(order)}
        self.sliced = sliced
        self.deadness = Deadness(table, list(order))
        self._reads = frozenset(reads)
        self._replaced = dict(replaced or {})
        self._loads: dict[tuple[str, str], str] = {}  # (user, read) -> the load that the user takes instead
        self._kept_loads: dict[str, str] = {}  # VarHandleOp -> the load that the update takes instead of its own
        self._dropped = set(reads)
        self._extra_control: dict[str, list[str]] = {}
        self._new: dict[str, NodeDef] = {}
        self._ends: list[str] = []
        self._events: list[Event] = []
        self._functions: dict[str, FunctionDef] = {}
        self._inserted: dict[str, list[str]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether there is a new node of this name."""
        return name in self._new

    @property
    def ends(self) -> tuple[str, ...]:
        """The nodes that the step has to wait for."""
        return tuple(self._ends)

    @property
    def inserted(self) -> Mapping[str, Sequence[str]]:
        """Original node -> new nodes before it in the order."""
        return self._inserted

    def schedule(self) -> list[Event]:
        """Return all moves in the order of their first use."""
        return sorted(self._events, key=lambda event: (event.first, event.weight))

    def add(self, *nodes: NodeDef) -> str:
        """Add nodes; return the name of the last one."""
        for node in nodes:
            self._new[node.name] = node
        return str(nodes[-1].name)

    def add_function(self, function: FunctionDef) -> None:
        """Add a function that new nodes call, unless the graph has it."""
        self._functions.setdefault(function.signature.name, function)

    def drop(self, *names: str) -> None:
        """Leave out original nodes."""
        self._dropped.update(names)

    def take_load(self, user: str, read: str, load: str) -> None:
        """Let an original op take a load in place of a read."""
        self._loads[(user, read)] = load

    def keep_load(self, handle: str, load: str) -> None:
        """Let the update of a variable take a load that its uses took before."""
        self._kept_loads[handle] = load

    def kept_load(self, handle: str) -> str | None:
        """Return the load that the update of a variable takes; None if it loads the variable itself."""
        return self._kept_loads.get(handle)

    def wait_for(self, name: str, others: Iterable[str]) -> None:
        """Let a node, original or new, run after others."""
        if name in self._new:
            self._new[name].input.extend(f"^{other}" for other in others)
        else:
            self._extra_control.setdefault(name, []).extend(others)

    def delay(self, names: Iterable[str], after: Sequence[str]) -> None:
        """Let original ops, except constants, run after other nodes."""
        for name in names:
            if self.table.nodes[name].op != "Const":
                self.wait_for(name, after)

    def finish_with(self, name: str) -> None:
        """Let the step end only when a node has run."""
        self._ends.append(name)

    def record(self, *events: Event) -> None:
        """Add moves to the schedule."""
        self._events.extend(events)

    def place_before(self, original: str, names: Iterable[str]) -> None:
        """Put new nodes into the order just before an original node, after those already put there."""
        self._inserted.setdefault(original, []).extend(names)

    def switched(self, name: str, value: str, dtype: int, switches: Sequence[Endpoint]) -> str:
        """Pass a value through new Switch nodes, so that it is dead unless the given branches are taken."""
        for level, endpoint in enumerate(switches):
            predicate = self.table.data_inputs(endpoint.node)[1]
            switch = NodeDef(name=f"{name}/cs_switch_{level}", op="Switch", input=[value, str(predicate)])
            switch.attr["T"].type = dtype
            value = str(Endpoint(self.add(switch), endpoint.port))
        return value

    def dtype(self, handle: str) -> int:
        """Return the dtype of the variable behind an original handle, as TensorFlow's number."""
        return int(self.table.nodes[handle].attr["dtype"].type)

    def input(self, user: str, endpoint: Endpoint) -> str:
        """Return the tensor that an op takes in place of an input."""
        return self._replaced.get((user, endpoint)) or self._loads.get((user, endpoint.node)) or str(endpoint)

    def control_of(self, name: str) -> list[str]:
        """Return the nodes to wait for in place of `name`.

        These are `name` itself, or, for a read that a load replaces, the nodes that the read waited for. The load is
        not among them: a write that had to follow the read already waits for the uses of its value.
        """
        if name not in self._reads:
            return [name]
        before = [endpoint.node for endpoint in self.table.inputs[name] if endpoint.is_control]
        return [control for node in before for control in self.control_of(node)]

    def controls(self, name: str) -> list[str]:
        """Return the control edges of a slice's copy of an op."""
        controls = [endpoint.node for endpoint in self.table.inputs[name] if endpoint.is_control]
        kept = [control for node in controls if node not in self.sliced for control in self.control_of(node)]
        return [f"^{control}" for control in dict.fromkeys(kept)]

    def waits(self, write: str) -> list[str]:
        """Return the control edges of the slices of a weight's update."""
        node = self.table.nodes[write]
        control = [text for text in node.input if text.startswith("^") and text[1:] not in self._reads]
        return control + [f"^{name}" for name in dict.fromkeys(self._extra_control.get(write, ()))]

    def weight_call(
        self, name: str, token: str, uses: VariableUses, switches: Sequence[Endpoint], inputs: list[tuple[str, int]]
    ) -> NodeDef:
        """Add a call into the weight store, which is dead if its branch is not taken. Return its node.

        Args:
            name: Name of the new node.
            token: The call, one of the tokens in graph.program.
            uses: Uses of the variable that the call moves.
            switches: Switches of the branches that the call is in.
            inputs: Further arguments, with their dtypes.
        """
        index = self.switched(name, self.add(index_node(name, uses.index)), INT64, switches)
        node = call_node(name, token, index, self.dtype(uses.variable.handle), inputs)
        self.add(node)
        return node

    def take_graph_def(self, on_host: Container[str], kept: Container[str]) -> GraphDef:
        """Return the rewritten graph, with equal constants merged. The emission is empty afterwards.

        The nodes of a large model take hundreds of megabytes, so each new node is freed when the graph has it.

        Args:
            on_host: Original nodes that are placed on the CPU.
            kept: Names of constants that are not merged.
        """
        source = self.table.graph_def
        rest = [node for node in source.node if node.name not in self._dropped]
        instead = equal_constants(chain(rest, self._new.values(), self.deadness.new_nodes), kept)
        result = GraphDef(versions=source.versions, library=source.library)
        result.library.function.extend(self._functions.values())
        for node in rest:
            if node.name in instead:
                continue
            new = result.node.add()
            new.CopyFrom(node)
            if node.name in on_host:
                new.device = "/device:CPU:0"
            inputs, control = self._rewritten_inputs(node.name)
            inputs += [f"^{name}" for name in dict.fromkeys(control)]
            _set_inputs(new, take_instead(inputs, instead))
        del rest
        for name in list(self._new):
            new = self._new.pop(name)
            if name not in instead:
                _set_inputs(new, take_instead(new.input, instead))
                result.node.append(new)
        for new in self.deadness.new_nodes:
            _set_inputs(new, take_instead(new.input, instead))
        result.node.extend(self.deadness.new_nodes)
        return result

    def _rewritten_inputs(self, name: str) -> tuple[list[str], list[str]]:
        """Return the inputs of an original node, and the nodes that it waits for."""
        inputs: list[str] = []
        control: list[str] = []
        for endpoint in self.table.inputs[name]:
            if endpoint.is_control:
                control += self.control_of(endpoint.node)
                continue
            inputs.append(self.input(name, endpoint))
            if (name, endpoint) not in self._replaced and (name, endpoint.node) in self._loads:
                control += self.control_of(endpoint.node)
        return inputs, [*control, *self._extra_control.get(name, ())]


def _set_inputs(node: NodeDef, inputs: list[str]) -> None:
    if inputs != node.input:
        del node.input[:]
        node.input.extend(inputs)
