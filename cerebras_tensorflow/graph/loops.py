"""Loops of tf.while_loop in a graph of Enter, Exit and NextIteration: which ops run once an iteration.

Every iteration is a frame of its own. An edge, also a control edge, between ops of different frames must go through
Enter or Exit; a pass that adds edges has to know who is inside.
"""

from __future__ import annotations

from cerebras_tensorflow.graph.nodes import NodeTable

ENTER_OPS = frozenset({"Enter", "RefEnter"})
EXIT_OPS = frozenset({"Exit", "RefExit"})


def loop_depths(table: NodeTable) -> dict[str, int]:
    """Return how many loops the output of each op is inside of; ops outside of all loops are left out."""
    depths: dict[str, int] = {}
    pending = [name for name, node in table.nodes.items() if node.op in ENTER_OPS]
    while pending:
        name = pending.pop()
        op = table.nodes[name].op
        outer = max((depths.get(endpoint.node, 0) for endpoint in table.inputs[name]), default=0)
        depth = outer + (op in ENTER_OPS) - (op in EXIT_OPS)
        if depth > depths.get(name, 0):
            depths[name] = depth
            pending.extend(table.consumers[name])
    return depths
