"""Several systems on one run: weights go down a tree to all of them, gradients are summed on the way up."""

from __future__ import annotations

import math

from cerebras_tensorflow.system import facts


def tree_levels(num_csx: int) -> int:
    """Return the levels of the tree between the weights and the systems. One system needs none.

    >>> [tree_levels(count) for count in (1, 2, 4, 5, 16)]
    [0, 1, 1, 2, 2]
    """
    fan_out = facts.CLUSTER_FAN_OUT.value
    return math.ceil(math.log(num_csx, fan_out) - 1e-9) if num_csx > 1 else 0


def tree_s(num_csx: int, hop_s: float) -> float:
    """Return the time that the tree adds to each weight's way to the wafer, and to each gradient's way back [s].

    The rate of the links does not change: a broadcast sends one copy into each system, and a level of the tree passes
    on one sum for all systems below it.
    """
    return tree_levels(num_csx) * hop_s
