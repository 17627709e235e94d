"""Fixes the order of the reads and writes of each variable in a step, with control edges.

TensorFlow orders a ReadVariableOp and an update of the same variable only if data flows between them. Reads have no
inputs, so in practice they run first. Weight streaming needs this order to be guaranteed. Several updates of one
variable run as soon as their inputs are ready. This order depends on timing, and so would the last bits of a sum.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from cerebras_tensorflow.graph.accesses.accesses import Access, Accesses
from cerebras_tensorflow.graph.conditionals import Deadness
from cerebras_tensorflow.graph.nodes import GraphDef, NodeTable, copied
from cerebras_tensorflow.graph.topological_order import CycleError, order_nodes
from cerebras_tensorflow.graph.variables import Variable, VariableAccess, find_variables, step_writes

Pair = tuple[Access, Access]  # two accesses to one variable, the earlier one first


def reads_before_writes(graph_def: GraphDef, train_node: str, fed: Container[str]) -> GraphDef:
    """Return the graph with control edges from the first reads of each variable to its writes in a step.

    A read that comes after a write gets no edge. Writes by functions and loops get none either, unless the train op
    does not need the read: `writes_in_order` gives them a place among the other accesses.

    Args:
        graph_def: The graph.
        train_node: Name of the train op. Writes that it does not depend on (initializers) do not count.
        fed: Names of the placeholders that every training step feeds.
    """
    table = NodeTable(graph_def)
    within = table.ancestors([train_node])
    accesses = Accesses(table)

    def is_free_read(access: Access) -> bool:
        """Whether every step can run a read that the train op does not depend on, for example in a summary."""
        if access.op == "VariableShape":
            return False
        beside = {name: table.nodes[name].op for name in table.ancestors(access.ends) - within}
        return not any(
            accesses.may_write(name) or (op == "Placeholder" and name not in fed) for name, op in beside.items()
        )

    pairs: list[Pair] = []
    for variable in find_variables(table).values():
        found = accesses.of(variable)
        writes = [access for access in found if access.writes and not within.isdisjoint(access.ends)]
        direct = [write for write in writes if write.is_direct]
        later = table.descendants(name for write in direct for name in write.ends)
        for read in found:
            is_needed = not within.isdisjoint(read.ends)
            if read.writes or not (is_needed or is_free_read(read)):
                continue
            if later.isdisjoint(read.ends):
                pairs += [(read, write) for write in (direct if is_needed else writes)]
            elif read.is_loop and is_needed and len(writes) == 1:
                pairs.append((writes[0], read))  # parts of the loop may not wait for the write
    pairs.sort(key=lambda pair: (table.index[pair[1].begins[0]], table.index[pair[0].begins[0]]))
    kept = list(_without_cycles(table, pairs))
    has_branches = any(first.is_conditional for first, _ in kept)
    deadness = Deadness(table, order_nodes(table) if has_branches else [], "cs_read")
    added: dict[str, list[str]] = {}
    for first, second in kept:
        ends = [deadness.alive(name) if first.is_conditional else name for name in first.ends]
        for name in second.begins:
            known = {endpoint.node for endpoint in table.inputs[name]}
            added.setdefault(name, []).extend(end for end in ends if end not in known)
    return _with_edges(graph_def, added, deadness)


def writes_in_order(graph_def: GraphDef, train_node: str) -> GraphDef:
    """Return the graph with a fixed order for all accesses of each variable that a step writes several times.

    The order is a topological order of the graph, so it agrees with the model's data and control edges. If a function
    (tf.function, a loop, a branch) writes a variable, or a draw changes a tf.random.Generator, it has a place in this
    order, too.

    Args:
        graph_def: The graph, with reads before writes.
        train_node: Name of the train op. Other ops (initializers) do not count.
    """
    table = NodeTable(graph_def)
    accesses = Accesses(table)
    found = [accesses.of(variable) for variable in find_variables(table, table.ancestors([train_node])).values()]
    several = [own for own in found if _needs_order(own)]
    if not several:
        return graph_def
    order = order_nodes(table, accesses.whole_loops(access for own in several for access in own))
    places = _Places(table, order)
    deadness = Deadness(table, order, "cs_write")
    added: dict[str, list[str]] = {}
    for own in several:
        before: list[Access] = []  # the last write, and the reads after it
        for access in sorted(own, key=places.of):
            follows = [name for one in before if access.writes or one.writes for name in one.ends]
            for name in access.begins:
                new = [deadness.alive(end) for end in places.independent(name, follows)]
                added.setdefault(name, []).extend(new)
            before = [access] if access.writes else [*before, access]
    return _with_edges(graph_def, added, deadness)


def accesses_in_order(graph_def: GraphDef, roots: Sequence[str], sources: Collection[str]) -> GraphDef:
    """Return the graph of a step without a train op with a fixed order for the accesses of each variable it writes.

    Reads come before writes, as in a training step, and writes one after the other. A read never waits for a write: a
    run that fetches a metric's value must not run its update.

    Args:
        graph_def: The graph.
        roots: Names of all ops that a run may fetch.
        sources: Names of the batch's placeholders.
    """
    table = NodeTable(graph_def)
    accesses = Accesses(table)
    running = table.ancestors([root for root in roots if root in table.nodes])
    changing: list[tuple[list[Access], list[Access]]] = []  # writes and reads of a variable
    for variable in find_variables(table, running).values():
        found = accesses.of(variable)
        in_step = {write.node for write in step_writes(table, variable, sources)}
        writes = [one for one in found if one.writes and not (one.is_direct and in_step.isdisjoint(one.begins))]
        if writes:
            later = table.descendants(name for write in writes for name in write.ends)
            reads = [access for access in found if not access.writes and later.isdisjoint(access.ends)]
            changing.append((writes, reads))
    if not changing:
        return graph_def
    whole = accesses.whole_loops(access for writes, reads in changing for access in (*writes, *reads))
    reads_first = {name: list(before) for name, before in whole.items()}
    for writes, reads in changing:
        for name in (begin for write in writes for begin in write.begins):
            reads_first.setdefault(name, []).extend(end for read in reads for end in read.ends)
    try:
        order = order_nodes(table, reads_first)
    except CycleError:  # a read of one variable needs a write of another one, and the other way round
        order = order_nodes(table, whole)
    places = _Places(table, order)
    deadness = Deadness(table, order, "cs_access")
    added: dict[str, list[str]] = {}
    for writes, reads in changing:
        last: list[str] = []
        for write in sorted(writes, key=places.of):
            earlier = [read for read in reads if places.of(read) < places.of(write)]
            follows = [*last, *(name for read in earlier for name in read.ends)]
            for name in write.begins:
                new = [deadness.alive(end) for end in places.independent(name, follows)]
                added.setdefault(name, []).extend(new)
            last = list(write.ends)
    return _with_edges(graph_def, added, deadness)


def first_reads(table: NodeTable, variable: Variable) -> tuple[list[VariableAccess], list[VariableAccess]]:
    """Return the reads of a variable before any write, and those after a write."""
    later = table.descendants(access.node for access in variable.writes)
    before = [access for access in variable.reads if access.node not in later]
    return before, [access for access in variable.reads if access.node in later]


def _needs_order(accesses: Collection[Access]) -> bool:
    """Whether timing could decide between two accesses of a variable, of which one writes."""
    writes = [access for access in accesses if access.writes]
    return len(writes) > 1 or (len(accesses) > 1 and any(not write.is_direct for write in writes))


def _without_cycles(table: NodeTable, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose edges form no cycle with the graph, the first ones if not all can have an edge.

    If a read of one variable needs a write of another one, and the other way round, then one of the two reads comes
    after the write of its own variable. The other edges then see to that, unless it is a loop, of which parts may not
    wait: the loop gets an edge from the write.
    """
    later = table.descendants(name for _, second in pairs for name in second.begins)
    result = [pair for pair in pairs if later.isdisjoint(pair[0].ends)]
    followers: dict[str, list[str]] = {}

    def follow(first: Access, second: Access) -> None:
        for name in first.ends:
            followers.setdefault(name, []).extend(second.begins)

    def reaches(names: Iterable[str], goals: Collection[str]) -> bool:
        reached: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in goals:
                return True
            if name not in reached:
                reached.add(name)
                pending += [*table.consumers[name], *followers.get(name, ())]
        return False

    for pair in result:
        follow(*pair)
    for first, second in pairs:
        if later.isdisjoint(first.ends):
            continue
        candidates = [(first, second), (second, first)] if first.is_loop or second.is_loop else [(first, second)]
        for pair in candidates:
            if not reaches(pair[1].begins, pair[0].ends):
                result.append(pair)
                follow(*pair)
                break
    return result


class _Places:
    """The places of nodes and accesses in a topological order.

    Args:
        table: The graph.
        order: All its nodes. The nodes of a loop that accesses a variable come before its first exit.
    """

    def __init__(self, table: NodeTable, order: Sequence[str]) -> None:
        self._table = table
        self._place: Mapping[str, int] = {name: number for number, name in enumerate(order)}

    def of(self, access: Access) -> int:
        """Return the place of an access."""
        return min(self._place[name] for name in access.ends)

    def independent(self, name: str, earlier: Sequence[str]) -> list[str]:
        """Return those of some earlier nodes that a node does not depend on."""
        inputs = {endpoint.node for endpoint in self._table.inputs[name]}
        left = [node for node in earlier if node not in inputs]
        first = min((self._place[node] for node in left), default=len(self._place))
        reached: set[str] = set()
        pending = [name] if left else []
        while pending:
            needs = {endpoint.node for endpoint in self._table.inputs[pending.pop()]} - reached
            new = [need for need in needs if self._place[need] >= first]
            reached.update(new)
            pending.extend(new)
        return [node for node in left if node not in reached]


def _with_edges(graph_def: GraphDef, added: Mapping[str, Sequence[str]], deadness: Deadness) -> GraphDef:
    """Return the graph with added control edges (node -> nodes before it) and the nodes that `deadness` has made."""
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if added.get(node.name):
            node = copied(node)
            node.input.extend(f"^{before}" for before in dict.fromkeys(added[node.name]))
        result.node.append(node)
    result.node.extend(deadness.new_nodes)
    return result
