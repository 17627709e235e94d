"""Fixes the order of the reads and writes of each variable in a step, with control edges.

TensorFlow orders a ReadVariableOp and an update of the same variable only if data flows between them. Reads have no
inputs, so in practice they run first. Weight streaming needs this order to be guaranteed. Several updates of one
variable run as soon as their inputs are ready. This order depends on timing, and so would the last bits of a sum.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from cerebras_tensorflow.graph.conditionals import Deadness
from cerebras_tensorflow.graph.function_calls import called_functions, functions_with
from cerebras_tensorflow.graph.nodes import CycleError, GraphDef, NodeTable, order_nodes
from cerebras_tensorflow.graph.variables import Variable, VariableAccess, find_variables, is_write, step_writes


def reads_before_writes(graph_def: GraphDef, train_node: str, fed: Container[str]) -> GraphDef:
    """Return the graph with a control edge from each first read of a variable to each of its writes in a step.

    A read that comes after a write gets no edge.

    Args:
        graph_def: The graph.
        train_node: Name of the train op. Writes that it does not depend on (initializers) do not count.
        fed: Names of the placeholders that every training step feeds.
    """
    table = NodeTable(graph_def)
    within = table.ancestors([train_node])

    def is_free_read(access: VariableAccess) -> bool:
        """Whether every step can run a read that the train op does not depend on, for example in a summary."""
        return access.op != "VariableShape" and all(
            not is_write(table.nodes[name].op) and (table.nodes[name].op != "Placeholder" or name in fed)
            for name in table.ancestors([access.node]) - within
        )

    pairs = []
    for variable in find_variables(table).values():
        variable.accesses = [access for access in variable.accesses if access.node in within or is_free_read(access)]
        for access in first_reads(table, variable)[0]:
            pairs += [(write.node, access) for write in variable.writes]
    # A control edge from a dead read would make the write dead too, so the write waits for a node that always runs.
    has_branches = any(access.switches for _, access in pairs)
    deadness = Deadness(table, order_nodes(table) if has_branches else [], "cs_read")
    added: dict[str, list[str]] = {}
    for write, access in sorted(pairs, key=lambda pair: (table.index[pair[0]], table.index[pair[1].node])):
        read = deadness.alive(access.node) if access.switches else access.node
        if read not in {endpoint.node for endpoint in table.inputs[write]}:
            added.setdefault(write, []).append(read)
    return _with_edges(graph_def, added, deadness)


def writes_in_order(graph_def: GraphDef, train_node: str) -> GraphDef:
    """Return the graph with a fixed order for all accesses of each variable that a step writes several times.

    The order is a topological order of the graph, so it agrees with the model's data and control edges. If a function
    (tf.function, a loop, a branch) writes a variable, its call has a place in this order, too.

    Args:
        graph_def: The graph, with reads before writes.
        train_node: Name of the train op. Other ops (initializers) do not count.
    """
    table = NodeTable(graph_def)
    variables = find_variables(table, table.ancestors([train_node])).values()
    writers = _writing_calls(graph_def, table)
    several = [variable for variable in variables if _needs_order(variable, writers)]
    if not several:
        return graph_def

    def writes(access: VariableAccess) -> bool:
        return is_write(access.op) or access.node in writers

    order = order_nodes(table)
    place = {name: number for number, name in enumerate(order)}
    deadness = Deadness(table, order, "cs_write")
    added: dict[str, list[str]] = {}
    for variable in several:
        before: list[VariableAccess] = []  # the last write, and the reads after it
        for access in sorted([*variable.accesses, *variable.calls], key=lambda access: place[access.node]):
            follows = [one.node for one in before if writes(access) or writes(one)]
            new = [deadness.alive(name) for name in _independent(table, place, access.node, follows)]
            added.setdefault(access.node, []).extend(new)
            before = [access] if writes(access) else [*before, access]
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
    running = table.ancestors([root for root in roots if root in table.nodes])
    writers = _writing_calls(graph_def, table)
    changing: list[tuple[list[VariableAccess], list[VariableAccess]]] = []
    for variable in find_variables(table, running).values():
        writes = step_writes(table, variable, sources)
        writes += [call for call in variable.calls if call.node in writers]
        if writes:
            later = table.descendants(write.node for write in writes)
            reads = [*variable.reads, *(call for call in variable.calls if call.node not in writers)]
            changing.append((writes, [read for read in reads if read.node not in later]))
    if not changing:
        return graph_def
    reads_first: dict[str, list[str]] = {}
    for writes, reads in changing:
        for write in writes:
            reads_first.setdefault(write.node, []).extend(read.node for read in reads)
    try:
        order = order_nodes(table, reads_first)
    except CycleError:  # a read of one variable needs a write of another one, and the other way round
        order = order_nodes(table)
    place = {name: number for number, name in enumerate(order)}
    deadness = Deadness(table, order, "cs_access")
    added: dict[str, list[str]] = {}
    for writes, reads in changing:
        last: list[str] = []
        for write in sorted(writes, key=lambda access: place[access.node]):
            follows = [*last, *(read.node for read in reads if place[read.node] < place[write.node])]
            new = [deadness.alive(name) for name in _independent(table, place, write.node, follows)]
            added.setdefault(write.node, []).extend(new)
            last = [write.node]
    return _with_edges(graph_def, added, deadness)


def _writing_calls(graph_def: GraphDef, table: NodeTable) -> set[str]:
    """Return the nodes whose functions may write a variable."""
    library = {function.signature.name: function for function in graph_def.library.function}
    own = [name for name, function in library.items() if any(is_write(node.op) for node in function.node_def)]
    writing = functions_with(library, own)
    if not writing:
        return set()
    return {name for name, node in table.nodes.items() if writing.intersection(called_functions(node, library))}


def _needs_order(variable: Variable, writers: Container[str]) -> bool:
    """Whether timing could decide between two accesses of a variable, of which one writes."""
    num_calls = sum(call.node in writers for call in variable.calls)
    num_writes = len(variable.writes) + num_calls
    return num_writes > 1 or (num_calls > 0 and len(variable.accesses) + len(variable.calls) > 1)


def _independent(table: NodeTable, place: Mapping[str, int], name: str, earlier: Sequence[str]) -> list[str]:
    """Return the earlier nodes that a node does not depend on.

    Args:
        table: The graph.
        place: Position of each node in a topological order.
        name: The node.
        earlier: Nodes before it in that order.
    """
    inputs = {endpoint.node for endpoint in table.inputs[name]}
    left = [node for node in earlier if node not in inputs]
    first = min((place[node] for node in left), default=len(place))
    reached: set[str] = set()
    pending = [name] if left else []
    while pending:
        needs = {endpoint.node for endpoint in table.inputs[pending.pop()]} - reached
        new = [need for need in needs if place[need] >= first]
        reached.update(new)
        pending.extend(new)
    return [node for node in left if node not in reached]


def first_reads(table: NodeTable, variable: Variable) -> tuple[list[VariableAccess], list[VariableAccess]]:
    """Return the reads of a variable before any write, and those after a write."""
    later = table.descendants(access.node for access in variable.writes)
    before = [access for access in variable.reads if access.node not in later]
    return before, [access for access in variable.reads if access.node in later]


def _with_edges(graph_def: GraphDef, added: Mapping[str, Sequence[str]], deadness: Deadness) -> GraphDef:
    """Return the graph with added control edges (node -> nodes before it) and the nodes that `deadness` has made."""
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if added.get(node.name):
            node = type(node).FromString(node.SerializeToString())
            node.input.extend(f"^{before}" for before in dict.fromkeys(added[node.name]))
        result.node.append(node)
    result.node.extend(deadness.new_nodes)
    return result
