"""Who takes each variable of a step: ops, function calls, and loops of Enter and Exit, each as one access.

A loop accesses a variable as a whole: it begins where the handle enters it, and ends at all of its exits. Only there
may control edges enter or leave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cerebras_tensorflow.graph.function_calls import called_functions, functions_that
from cerebras_tensorflow.graph.loops import ENTER_OPS, EXIT_OPS, frames_of_nodes
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.variables import Variable, VariableAccess, may_write

_PASSING = frozenset({"Identity", "Switch", "RefSwitch", "Enter", "RefEnter", "Merge", "RefMerge", "NextIteration"})


@dataclass(frozen=True)
class Access:
    """One access to a variable.

    Attributes:
        begins: The nodes that earlier accesses must come before: the op, or the Enter ops of a loop.
        ends: The nodes after which it is over: the op, or the Exit ops of a loop.
        op: Type of the first node.
        writes: Whether it may change the variable.
        is_direct: Whether it is a read or a write of a variable itself, and no call, loop or draw of a Generator.
        is_conditional: Whether the handle comes through a Switch.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    op: str
    writes: bool
    is_direct: bool
    is_conditional: bool

    @property
    def is_loop(self) -> bool:
        """Whether it is a loop."""
        return self.op in ENTER_OPS


class Accesses:
    """The accesses in one graph.

    Args:
        table: The graph.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        library = {function.signature.name: function for function in table.graph_def.library.function}
        writing = functions_that(may_write, library)
        self._writers = {
            name
            for name, node in table.nodes.items()
            if writing and writing.intersection(called_functions(node, library))
        }
        self._frames: Mapping[str, tuple[str, ...]] | None = None
        self._exits: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, variable: Variable) -> list[Access]:
        """Return the accesses to a variable. A loop counts once, however often the handle enters it."""
        writes = {access.node for access in variable.writes}
        found = [_of_op(access, access.node in writes, is_direct=True) for access in variable.accesses]
        loops: dict[tuple[str, ...], list[VariableAccess]] = {}
        for call in variable.calls:
            if call.op in ENTER_OPS:
                loops.setdefault(self._frame(call.node), []).append(call)
            else:
                found.append(_of_op(call, self.may_write(call.node), is_direct=False))
        return [*found, *(self._of_loop(frame, enters) for frame, enters in loops.items() if self._exits_of(frame))]

    def may_write(self, name: str) -> bool:
        """Whether a node, or a function that it calls, may write a variable."""
        return name in self._writers or may_write(self._table.nodes[name].op)

    def whole_loops(self, accesses: Iterable[Access]) -> dict[str, list[str]]:
        """Return edges (node -> nodes before it) that put all entries of each loop before its first exit."""
        edges: dict[str, list[str]] = {}
        for frame in {self._frame(access.begins[0]) for access in accesses if access.is_loop}:
            enters = [name for name, inner in self._known_frames.items() if inner == frame and self._enters(name)]
            edges |= dict.fromkeys(self._exits_of(frame), enters)
        return edges

    def _of_loop(self, frame: tuple[str, ...], enters: list[VariableAccess]) -> Access:
        names = tuple(enter.node for enter in enters)
        is_conditional = any(enter.switches for enter in enters)
        return Access(names, self._exits_of(frame), enters[0].op, self._is_written(names), False, is_conditional)

    def _is_written(self, enters: Iterable[str]) -> bool:
        """Whether an op of a loop may write the variable whose handle enters it."""
        pending = list(enters)
        seen: set[str] = set()
        while pending:
            source = pending.pop()
            if source in seen:
                continue
            seen.add(source)
            for name in self._table.consumers[source]:
                if all(endpoint.node != source for endpoint in self._table.data_inputs(name)):
                    continue
                if self.may_write(name):
                    return True
                if self._table.nodes[name].op in _PASSING:
                    pending.append(name)
        return False

    @property
    def _known_frames(self) -> Mapping[str, tuple[str, ...]]:
        if self._frames is None:
            self._frames = frames_of_nodes(self._table)
        return self._frames

    def _frame(self, name: str) -> tuple[str, ...]:
        return self._known_frames[name]

    def _enters(self, name: str) -> bool:
        return self._table.nodes[name].op in ENTER_OPS

    def _exits_of(self, frame: tuple[str, ...]) -> tuple[str, ...]:
        if not self._exits:
            exits: dict[tuple[str, ...], list[str]] = {}
            for name, node in self._table.nodes.items():
                if node.op in EXIT_OPS:
                    exits.setdefault(self._frame(self._table.data_inputs(name)[0].node), []).append(name)
            self._exits = {inner: tuple(names) for inner, names in exits.items()}
        return self._exits.get(frame, ())


def _of_op(access: VariableAccess, writes: bool, is_direct: bool) -> Access:
    return Access((access.node,), (access.node,), access.op, writes, is_direct, bool(access.switches))
