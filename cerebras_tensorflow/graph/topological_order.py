"""A topological order of a graph: which op may run after which, and an order that keeps few values alive."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.loops import ENTER_OPS, EXIT_OPS, frames_of_nodes
from cerebras_tensorflow.graph.nodes import NodeTable, reachable


class CycleError(CompileError):
    """The edges of a graph form a cycle; `nodes` lists the nodes that could not be ordered."""

    def __init__(self, nodes: list[str]) -> None:
        super().__init__(f"the graph has a cycle through {', '.join(nodes[:4])}")
        self.nodes = nodes


def order_nodes(
    table: NodeTable,
    extra_edges: Mapping[str, Iterable[str]] | None = None,
    sources: Iterable[str] = (),
    early: Iterable[str] = (),
) -> list[str]:
    """Return all nodes in a topological order that keeps few values alive at a time.

    Nodes that depend on the sources (the batch) keep the program's order, except that `early` nodes come as soon as
    possible. Other nodes (a weight's read, a decayed moment, a random mask) come just before their first use.

    Args:
        table: The graph.
        extra_edges: Node -> more nodes that must come before it.
        sources: Nodes whose descendants drive the order.
        early: Nodes to place as soon as their inputs are ready (weight updates, each right after its gradient).

    Raises:
        CycleError: If the edges form a cycle. Loops of tf.while_loop are allowed and cut at NextIteration.
    """
    before = {name: _nodes_before(table, name) | set((extra_edges or {}).get(name, ())) for name in table.nodes}
    for name, enters in _enters_of_exits(table).items():
        before[name] |= enters
    after: dict[str, list[str]] = {name: [] for name in table.nodes}
    for name, nodes in before.items():
        for node in nodes:
            after[node].append(name)
    drivers = reachable(after, sources)
    waiting = {name: sum(node in drivers for node in before[name]) for name in drivers}
    early_nodes = set(early)
    heap = [(name not in early_nodes, table.index[name], name) for name, count in waiting.items() if count == 0]
    heapq.heapify(heap)
    order: dict[str, None] = {}
    while heap:
        name = heapq.heappop(heap)[-1]
        _place_with_needs(name, before, order)
        for follower in after[name]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(heap, (follower not in early_nodes, table.index[follower], follower))
    stuck = [name for name, count in waiting.items() if count > 0]
    if stuck:
        raise CycleError(stuck)
    for name in table.nodes:
        _place_with_needs(name, before, order)
    return list(order)


def _enters_of_exits(table: NodeTable) -> dict[str, set[str]]:
    """Return, for each exit of a loop, the entries of the loop that it needs.

    An exit waits for the last iteration. What that needs in the iterations before comes over back edges.
    """
    frames = frames_of_nodes(table)
    return {
        name: _entries_before(table, frames, name, frames.get(table.inputs[name][0].node, ()))
        for name, node in table.nodes.items()
        if node.op in EXIT_OPS
    }


def _entries_before(
    table: NodeTable, frames: Mapping[str, tuple[str, ...]], name: str, frame: tuple[str, ...]
) -> set[str]:
    """Return the entries of a loop from which a node can be reached, over back edges too."""
    entries: set[str] = set()
    reached: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current in reached:
            continue
        reached.add(current)
        if table.nodes[current].op in ENTER_OPS and frames.get(current) == frame:
            entries.add(current)
        else:
            pending.extend(endpoint.node for endpoint in table.inputs[current])
    return entries


def _nodes_before(table: NodeTable, name: str) -> set[str]:
    """Names of the direct inputs of a node, without the back edges of while loops."""
    before = {endpoint.node for endpoint in table.inputs[name]}
    if table.nodes[name].op in ("Merge", "RefMerge"):
        before = {node for node in before if table.nodes[node].op not in ("NextIteration", "RefNextIteration")}
    return before


def _place_with_needs(name: str, before: Mapping[str, set[str]], order: dict[str, None]) -> None:
    """Append a node to the order, after its missing ancestors (depth first, without recursion)."""
    if name in order:
        return
    stack = [(name, iter(sorted(before[name])))]
    open_nodes = {name}
    while stack:
        current, needs = stack[-1]
        for need in needs:
            if need in order:
                continue
            if need in open_nodes:
                raise CycleError([need, current])
            open_nodes.add(need)
            stack.append((need, iter(sorted(before[need]))))
            break
        else:
            stack.pop()
            open_nodes.discard(current)
            order[current] = None
