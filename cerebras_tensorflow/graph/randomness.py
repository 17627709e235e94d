"""Randomness as a function of (seed, op, step) instead of the hidden state of a kernel.

TensorFlow's random ops advance a generator inside the kernel: what step 37 draws depends on having run steps 1 to 36
in this process. This pass turns them into their stateless counterparts with the Philox key taken from the op's own
seeds and the counter's upper word fed for each step. Both execution modes then draw the same numbers, whatever order
their ops run in, and a resumed run draws what the unbroken one would have drawn.

An op without any seed takes its key from its name and the lower counter word from entropy drawn once a run.
"""

from __future__ import annotations

import hashlib

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.loops import ENTER_OPS, loop_depths
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable, constant_node

SEEDED_COUNTER = "cs_random/seeded_counter"
UNSEEDED_COUNTER = "cs_random/unseeded_counter"
INITIALIZATION_STEP = 2**63  # a step number that no training step has
_ALGORITHM = "cs_random/algorithm"
_PHILOX = 1

_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}


def make_stateless(graph_def: GraphDef) -> GraphDef:
    """Return the graph with its top-level random ops replaced; names, shapes and dtypes stay.

    Random ops inside function bodies and loops keep their kernels' state: a function of the step would draw the same
    numbers in each iteration. Such loops run one iteration at a time, so that each draws the same numbers in every
    process that starts anew; a resumed run draws others than the unbroken one.
    """
    loops = loop_depths(NodeTable(graph_def))
    is_drawing_in_loops = any(node.op in _STATELESS and node.name in loops for node in graph_def.node)
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(
        [
            _counter_placeholder(SEEDED_COUNTER),
            _counter_placeholder(UNSEEDED_COUNTER),
            constant_node(_ALGORITHM, np.int32(_PHILOX)),
        ]
    )
    for node in graph_def.node:
        if node.op not in _STATELESS or node.name in loops:
            result.node.append(node)
            if is_drawing_in_loops and node.op in ENTER_OPS:
                result.node[-1].attr["parallel_iterations"].i = 1
            continue
        result.node.extend(_stateless_nodes(node))
    return result


def counter_feed(step: int, micro_step: int, entropy: int) -> dict[str, np.ndarray]:
    """Values of the two counters for one run of the graph.

    Args:
        step: Global step before the run, or INITIALIZATION_STEP.
        micro_step: Runs since the global step last changed (gradient accumulation), less than 2**20.
        entropy: What ops without a seed draw from; any 64-bit number.

    Returns:
        Name of the tensor -> (2,) uint64, lower word first.
    """
    upper = np.uint64((step << 20 | micro_step) & (2**64 - 1)) if step != INITIALIZATION_STEP else np.uint64(step)
    return {
        f"{SEEDED_COUNTER}:0": np.array([0, upper], np.uint64),
        f"{UNSEEDED_COUNTER}:0": np.array([entropy & (2**63 - 1), upper], np.uint64),
    }


def _stateless_nodes(node: NodeDef) -> list[NodeDef]:
    seed, seed2 = node.attr["seed"].i, node.attr["seed2"].i
    is_seeded = bool(seed or seed2)
    identity = f"{seed},{seed2}" if is_seeded else node.name
    key = np.frombuffer(hashlib.blake2b(identity.encode(), digest_size=8).digest(), np.uint64)
    key_name = f"{node.name}/cs_key"
    data = [text for text in node.input if not text.startswith("^")]
    control = [text for text in node.input if text.startswith("^")]
    new = NodeDef(name=node.name, op=_STATELESS[node.op], device=node.device)
    counter = SEEDED_COUNTER if is_seeded else UNSEEDED_COUNTER
    new.input.extend([data[0], key_name, counter, _ALGORITHM, *data[1:], *control])
    new.attr["Tshape"].CopyFrom(node.attr["T"])
    new.attr["dtype"].CopyFrom(node.attr["Tout" if node.op == "RandomUniformInt" else "dtype"])
    return [constant_node(key_name, key), new]


def _counter_placeholder(name: str) -> NodeDef:
    node = NodeDef(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.uint64.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape([2]).as_proto())
    return node
