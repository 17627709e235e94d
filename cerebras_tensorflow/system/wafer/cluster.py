"""Several systems on one run: weights go down a tree to all of them, gradients are summed on the way up."""

from __future__ import annotations

import math

from cerebras_tensorflow.system import facts


def tree_levels(num_csx: int) -> int:
    """Return the levels of the tree that joins several systems. One system needs none.

    >>> [tree_levels(count) for count in (1, 2, 4, 5, 16)]
    [0, 1, 1, 2, 2]
    """
    fan_out = facts.CLUSTER_FAN_OUT.value
    return math.ceil(math.log(num_csx, fan_out) - 1e-9) if num_csx > 1 else 0


def way_s(num_csx: int, hop_s: float) -> float:
    """Return the time that a weight takes from the machines that keep it to the wafers, or a gradient back [s].

    Weights are kept outside of a system, so even one system is a hop away from them; each level of the tree adds one.
    The rate of the links does not change: a broadcast sends one copy into each system, and a level of the tree passes
    on one sum for all systems below it.

    >>> [way_s(count, 1.0) for count in (1, 4, 16)]
    [1.0, 2.0, 3.0]
    """
    return (1 + tree_levels(num_csx)) * hop_s
