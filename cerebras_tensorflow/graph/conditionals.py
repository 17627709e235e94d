"""tf.cond as Switch and Merge: which nodes may not run, and how to wait for such a node.

A node in a branch that is not taken is dead. A control edge makes its consumer dead too. `Deadness.alive` returns a
node that always runs. If the branch is taken, it runs after the conditional node. Otherwise it runs at once.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, NodeTable, constant_node

_SWITCHES = ("Switch", "RefSwitch")
Branch = tuple[str, int]  # the predicate's input string, and 1 for true or 0 for false


class Deadness:
    """Branch conditions of every node, and new nodes through which others can wait for a conditional node.

    Args:
        table: The graph.
        order: All nodes in topological order.
        suffix: Names of new nodes are "<node>/<suffix>".
    """

    def __init__(self, table: NodeTable, order: list[str], suffix: str = "cs_alive") -> None:
        self._table = table
        self._suffix = suffix
        self._branches: dict[str, tuple[Branch, ...]] = {}
        self._alive: dict[str, str] = {}
        self.new_nodes: list[NodeDef] = []
        if any(node.op in _SWITCHES for node in table.nodes.values()):
            for name in order:
                self._branches[name] = self._find_branches(name)

    def branches(self, name: str) -> tuple[Branch, ...]:
        """Branches that must be taken for a node to run, outermost first; empty if it always runs."""
        return self._branches.get(name, ())

    def branches_of_output(self, endpoint: Endpoint) -> tuple[Branch, ...]:
        """Branches that must be taken for an output to have a value, outermost first."""
        branches = self.branches(endpoint.node)
        node = self._table.nodes[endpoint.node]
        if node.op in _SWITCHES:
            branches = (*branches, (str(self._table.data_inputs(endpoint.node)[1]), endpoint.port))
        return branches

    def inherit(self, name: str, origin: str) -> None:
        """Record that a new node runs exactly when `origin` runs."""
        self._branches[name] = self.branches(origin)

    def alive(self, name: str) -> str:
        """Return the name of a node that always runs. It runs after `name` if `name` runs."""
        branches = self.branches(name)
        if not branches:
            return name
        if name not in self._alive:
            self._alive[name] = self._add_merge(name, branches)
        return self._alive[name]

    def _find_branches(self, name: str) -> tuple[Branch, ...]:
        node = self._table.nodes[name]
        if node.op in ("Merge", "RefMerge"):
            known = [self.branches_of_output(e) for e in self._table.data_inputs(name) if e.node in self._branches]
            result = [branch for branch in (known[0] if known else ()) if all(branch in other for other in known)]
        else:
            result = []
            for endpoint in self._table.data_inputs(name):
                result += [branch for branch in self.branches_of_output(endpoint) if branch not in result]
        for endpoint in self._table.inputs[name]:
            if endpoint.is_control:
                result += [branch for branch in self.branches(endpoint.node) if branch not in result]
        if node.op in ("Exit", "RefExit"):
            result = [branch for branch in result if self._table.nodes[branch[0].split(":")[0]].op != "LoopCond"]
        return tuple(result)

    def _add_merge(self, name: str, branches: tuple[Branch, ...]) -> str:
        prefix = f"{name}/{self._suffix}"
        value = f"{prefix}/value"
        self.new_nodes.append(constant_node(value, np.int32(0)))
        alternatives = []
        for level, (predicate, side) in enumerate(branches):
            switch = NodeDef(name=f"{prefix}/switch_{level}", op="Switch", input=[value, predicate])
            switch.attr["T"].type = tf.int32.as_datatype_enum
            self.new_nodes.append(switch)
            alternatives.append(str(Endpoint(switch.name, 1 - side)))
            value = str(Endpoint(switch.name, side))
        done = NodeDef(name=f"{prefix}/done", op="Identity", input=[value, f"^{name}"])
        done.attr["T"].type = tf.int32.as_datatype_enum
        merge = NodeDef(name=prefix, op="Merge", input=[done.name, *alternatives])
        merge.attr["T"].type = tf.int32.as_datatype_enum
        merge.attr["N"].i = len(branches) + 1
        self.new_nodes.extend([done, merge])
        return prefix
