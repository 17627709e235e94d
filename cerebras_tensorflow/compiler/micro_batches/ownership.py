"""Several CSX hold each weight once: chooses the CSX that owns and updates each weight, and cuts its update.

The owner of a weight also owns its slots and the total of its gradient, and it alone updates them. All other CSX read
the weight from the owner. So a weight can have one owner only if its update takes nothing large from the weights of
other owners:

- Variables and totals whose values meet in one update, other than through small values, get the same owner. A variable
  that the step does not change (a frozen table) joins no owners: if several need it, every CSX holds it.
- A small value (a norm of the gradient, a check for overflow) is computed by every CSX that needs it, in the same order
  as on one CSX. Every CSX therefore gets the totals that it depends on.
- If a summary depends on a weight that the step changes, or a small value, an assertion of the train op or a variable
  that every CSX holds depends on any weight, then each CSX must see it before its update. Such a weight stays on every
  CSX: during an update no CSX reads from another one, which could wait for it.

The choice depends on the graph and on sizes only, so that every process and every run makes the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cerebras_tensorflow.compiler.micro_batches.writes import find_writes, variables_of
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.micro_batches import EVERY
from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, NodeTable, prune
from cerebras_tensorflow.graph.variables import is_known_write

_SMALL_BYTES = 64  # a larger value belongs to one CSX
_JOINS = frozenset(["Merge", "RefMerge", "Exit", "RefExit"])  # ops that end a branch or a loop


@dataclass(frozen=True)
class Update:
    """The update of a step in micro-batches.

    Attributes:
        graph_def: Its graph.
        train_node: Name of the train op.
        roots: Names of all ops that a run may fetch.
        outputs: Outputs of each op.
        sizes: Size [B] of each variable and total in the store, by its VarHandleOp.
        totals: Those of them that are totals.
        placeholders: Placeholders of the totals of sparse gradients, each with its number of the gradient.
    """

    graph_def: GraphDef
    train_node: str
    roots: Sequence[str]
    outputs: Mapping[str, Sequence[Output]]
    sizes: Mapping[str, int]
    totals: Collection[str]
    placeholders: Mapping[str, int]


@dataclass(frozen=True)
class Owners:
    """Who owns what.

    Attributes:
        variables: VarHandleOp of a variable or total in the store -> its owner, or EVERY.
        sparse: Number of a sparse gradient -> the CSX that needs its total, or EVERY.
    """

    variables: Mapping[str, int]
    sparse: Mapping[int, int]


def choose_owners(update: Update, num_csx: int) -> Owners:
    """Return the owner of each variable and total. The shares of the CSX have about the same size."""
    return _Choice(update).owners(num_csx)


def update_of(update: Update, owners: Owners, rank: int) -> GraphDef:
    """Return the part of an update that one CSX computes: the changes of what it owns and of what every CSX holds."""
    table = NodeTable(update.graph_def)
    others = {handle for handle, owner in owners.variables.items() if owner not in (rank, EVERY)}
    earlier = _Earlier(table, find_writes(table))
    result = GraphDef(versions=update.graph_def.versions, library=update.graph_def.library)
    for node in update.graph_def.node:
        if is_known_write(node.op) and variables_of(table, node.name) & others:
            waits = dict.fromkeys(text for text in node.input if text.startswith("^"))
            waits.update(dict.fromkeys(f"^{name}" for name in earlier.awaited(node.name)))
            node = NodeDef(name=node.name, op="NoOp", input=list(waits))
        result.node.append(node)
    kept = [node.name for node in result.node if node.op in ("VarHandleOp", "Placeholder")]
    return prune(result, [*update.roots, *kept])


class _Earlier:
    """Finds the changes that must happen before a write, because its values are read after them."""

    def __init__(self, table: NodeTable, writes: Collection[str]) -> None:
        self._table = table
        self._writes = writes
        self._after = set(table.descendants(writes)) | set(writes)

    def awaited(self, write: str) -> list[str]:
        """Return the ops that the values of a write wait for: other writes, and ops that end after them."""
        return self._walk(write)[0]

    def has_branches(self, write: str) -> bool:
        """Whether the values of a write come, after another write, from a branch or a loop."""
        return any(self._table.nodes[name].op in _JOINS for name in self._walk(write)[1])

    def _walk(self, write: str) -> tuple[list[str], set[str]]:
        """Return what the values wait for, and the ops after other writes that compute the values."""
        waits: dict[str, None] = {}
        computed: set[str] = set()
        pending = [write]
        while pending:
            for endpoint in self._table.inputs[pending.pop()]:
                name = endpoint.node
                if name in self._after and (endpoint.is_control or name in self._writes):
                    waits[name] = None
                elif name in self._after and name not in computed:
                    computed.add(name)
                    pending.append(name)
        return list(waits), computed


class _Choice:
    """The analysis of one update."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._table = NodeTable(update.graph_def)
        self._trained = self._table.ancestors([update.train_node])
        self._writes = find_writes(self._table)
        self._earlier = _Earlier(self._table, self._writes)
        self._fetched = (
            frozenset(update.roots) - {update.train_node} - set(self._table.descendants([update.train_node]))
        )
        self._handles = [*update.sizes, *update.placeholders]
        self._parent = {handle: handle for handle in self._handles}

    def owners(self, num_csx: int) -> Owners:
        """Return the owner of each variable and total."""
        sizes, totals = self._update.sizes, self._update.totals
        written = {write: variables_of(self._table, write) for write in self._writes}
        for handle in sorted(self._handles, key=lambda handle: self._is_frozen(handle, written)):
            reached = self._reached(handle, is_large=True) & self._writes
            met = [one for write in reached for one in written[write] & self._parent.keys()]
            if self._is_frozen(handle, written) and len({self._root(one) for one in met}) > 1:
                continue
            for variable in met:
                self._unite(handle, variable)
        variables = [handle for handle in sizes if handle not in totals]
        leaving = {handle for handle in self._handles if self._leaves(handle, written)}
        held = {handle for handle in variables if handle in leaving or not self._can_have_one_owner(handle, written)}
        groups = {self._root(handle) for handle in held}
        everywhere = {handle for handle in self._handles if self._root(handle) in groups}
        everywhere |= leaving - set(variables)
        return self._placed(everywhere, num_csx)

    def _is_frozen(self, handle: str, written: Mapping[str, frozenset[str]]) -> bool:
        """Whether the step does not change a variable."""
        is_total = handle in self._update.totals or handle in self._update.placeholders
        return not is_total and not any(handle in variables for variables in written.values())

    def _placed(self, everywhere: Collection[str], num_csx: int) -> Owners:
        """Give each group of variables to the CSX with the fewest bytes so far, the largest group first."""
        sizes = self._update.sizes
        groups: dict[str, int] = {}
        for handle, num_bytes in sizes.items():
            if handle not in everywhere:
                root = self._root(handle)
                groups[root] = groups.get(root, 0) + num_bytes
        load = [0] * num_csx
        placed: dict[str, int] = {}
        for root in sorted(groups, key=lambda root: (-groups[root], self._table.index[root])):
            placed[root] = load.index(min(load))
            load[placed[root]] += groups[root]
        owners = {
            handle: EVERY if handle in everywhere else placed.get(self._root(handle), EVERY) for handle in self._handles
        }
        sparse: dict[int, int] = {}
        for handle, number in self._update.placeholders.items():
            sparse[number] = owners[handle] if sparse.get(number, owners[handle]) == owners[handle] else EVERY
        return Owners({handle: owners[handle] for handle in sizes}, sparse)

    def _can_have_one_owner(self, handle: str, written: Mapping[str, frozenset[str]]) -> bool:
        """Whether all changes of a variable are known, belong to the train op, and can be left out."""
        changes = [write for write, variables in written.items() if handle in variables]
        return all(
            is_known_write(self._table.nodes[write].op)
            and write in self._trained
            and not self._earlier.has_branches(write)
            for write in changes
        )

    def _leaves(self, handle: str, written: Mapping[str, frozenset[str]]) -> bool:
        """Whether the update of another group, or a check in the train op, takes a value that depends on it.

        A summary that takes a value which does not change is no reason: only the first CSX computes it.
        """
        is_total = handle in self._update.totals or handle in self._update.placeholders
        is_changing = is_total or any(handle in variables for variables in written.values())
        reached = self._reached(handle, is_large=False)
        group = self._root(handle)
        return (
            (is_changing and not reached.isdisjoint(self._fetched))
            or any(self._is_awaited(name) for name in reached - self._writes)
            or any(
                variable not in self._parent or self._root(variable) != group
                for write in reached & self._writes
                for variable in written[write] or {""}
            )
        )

    def _is_awaited(self, name: str) -> bool:
        """Whether the train op needs an op itself, and not only its values: it is an assertion, for example."""
        return name in self._trained and (
            name == self._update.train_node
            or any(
                f"^{name}" in self._table.nodes[user].input
                for user in self._table.consumers[name]
                if user in self._trained
            )
        )

    def _reached(self, handle: str, is_large: bool) -> set[str]:
        """Return the ops that depend on a variable or placeholder through values, up to the writes.

        Args:
            handle: Its op.
            is_large: Whether to follow only values that are not small.
        """
        reached: set[str] = set()
        pending = [handle]
        while pending:
            name = pending.pop()
            for user in self._table.consumers[name]:
                if user not in reached and self._takes(user, name, is_large):
                    reached.add(user)
                    if user not in self._writes:
                        pending.append(user)
        return reached

    def _takes(self, user: str, name: str, is_large: bool) -> bool:
        """Whether an op takes a value of another one."""
        return any(
            endpoint.node == name and not (is_large and self._is_small(endpoint))
            for endpoint in self._table.data_inputs(user)
        )

    def _is_small(self, endpoint: Endpoint) -> bool:
        outputs = self._update.outputs.get(endpoint.node, ())
        if endpoint.port >= len(outputs):
            return False
        output = outputs[endpoint.port]
        return output.shape is not None and output.num_bytes <= _SMALL_BYTES

    def _root(self, handle: str) -> str:
        while self._parent[handle] != handle:
            self._parent[handle] = self._parent[self._parent[handle]]
            handle = self._parent[handle]
        return handle

    def _unite(self, one: str, other: str) -> None:
        first, second = sorted((self._root(one), self._root(other)), key=self._table.index.__getitem__)
        self._parent[second] = first
