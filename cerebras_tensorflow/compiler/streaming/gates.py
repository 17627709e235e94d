"""Makes the gates of a schedule: nodes at which a move waits until enough of the earlier moves have been used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.compiler.nodes.emission import Emission
from cerebras_tensorflow.compiler.nodes.ops import barrier_node
from cerebras_tensorflow.compiler.streaming.schedule import find_waits, held_curve


def add_gates(emission: Emission, window_bytes: int) -> tuple[int, NDArray[np.int64]]:
    """Add a chain of gates, and let each move wait for its gate.

    Args:
        emission: The graph, with all moves recorded.
        window_bytes: Bytes of weights in memory at a time.

    Returns:
        The most bytes that moves hold at a time, and the most that they hold while each op of the order runs.
    """
    events = emission.schedule()
    waits, most_held_bytes = find_waits(events, window_bytes)
    previous: str | None = None
    for number, (event, finishers) in enumerate(zip(events, waits, strict=True)):
        if event.kind == "gather":
            continue
        alive = dict.fromkeys(emission.deadness.alive(name) for name in finishers)
        if alive or previous is None:
            earlier = [*alive, *([previous] if previous else [])]
            previous = emission.add(barrier_node(f"cs_gate/{number}", earlier))
        emission.wait_for(event.node, [previous])
    return most_held_bytes, held_curve(events, waits, len(emission.position))
