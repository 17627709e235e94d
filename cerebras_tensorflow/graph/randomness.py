"""Make random numbers a function of (seed, op, step) instead of hidden kernel state.

TensorFlow's random ops advance a generator inside the kernel: the draws of step 37 depend on steps 1 to 36 of the same
process. This pass replaces the ops with their stateless counterparts (random_ops.py). The Philox key comes from the
op's seeds. The upper word of the counter is fed in each step. So both execution modes draw the same numbers in any
order of ops, and a resumed run draws the same numbers as an uninterrupted one.

An op without a seed takes its key from its name, and the lower word of its counter from entropy drawn once per run.

Inside loops and functions the key also depends on the path to the op. At the top level the path is 0:

    path of an iteration  = (path outside the loop + number of the iteration + 1) * FACTOR    (modulo 2**64)
    path of a called body = (path outside the call + hash of the call's name) * FACTOR
    key                   = path + key of the op

A loop gets a variable that counts its iterations. A function with random ops gets arguments for path and counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.bodies import UINT64, Body, table_of_function
from cerebras_tensorflow.graph.function_calls import (
    LOOPS,
    callees,
    functions_with,
    is_plain_call,
    with_arguments,
)
from cerebras_tensorflow.graph.loops import Loop, find_loops, frames_of_nodes
from cerebras_tensorflow.graph.nodes import FunctionDef, GraphDef, NodeDef, NodeTable, constant_node, copied
from cerebras_tensorflow.graph.random_ops import (
    PHILOX,
    Source,
    add_stateless,
    is_replaceable,
    is_seeded,
    key_of_op,
    key_of_text,
)

SEEDED_COUNTER = "cs_random/seeded_counter"
UNSEEDED_COUNTER = "cs_random/unseeded_counter"
INITIALIZATION_STEP = 2**63  # a step number that no training step has
_ALGORITHM = "cs_random/algorithm"
_DRAWS_BITS = 40
MOST_MICRO_STEPS = 1 << 20
"""Runs of one global step that draw different numbers."""
_FACTOR = np.array([0x9E3779B97F4A7C15], np.uint64)  # odd, so that different paths stay different; 2**64 / golden ratio
_ONE = np.array([1], np.uint64)
_ARGUMENTS = ("cs_random_path", "cs_random_seeded_counter", "cs_random_unseeded_counter")
_LOOP_ARGUMENT = "cs_random_iteration"
_ARGUMENT_SHAPES = ((1,), (2,), (2,), (1,))
_CALL, _CONDITION, _LOOP_BODY = "call", "cond", "body"  # how a function is used


def make_stateless(graph_def: GraphDef) -> GraphDef:
    """Return the graph with its random ops replaced, also in loops and functions; names, shapes and dtypes stay.

    Ops without a stateless counterpart stay unchanged. So do functions that are not called with the graph's tensors:
    those of a Dataset, or of a gradient that TensorFlow makes at run time. exactness.py warns of the remaining ops.
    """
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(
        [
            _counter_placeholder(SEEDED_COUNTER),
            _counter_placeholder(UNSEEDED_COUNTER),
            constant_node(_ALGORITHM, np.int32(PHILOX)),
        ]
    )
    functions = _Functions({function.signature.name: function for function in graph_def.library.function})
    if not any(is_replaceable(node) or functions.may_draw(node) for node in graph_def.node):
        result.node.extend(graph_def.node)
        return result
    root = _Scope(None, SEEDED_COUNTER, UNSEEDED_COUNTER, _ALGORITHM)
    result.node.extend(_rewritten(graph_def.node, NodeTable(graph_def), Body(False), root, functions))
    result.library.function.extend(functions.variants.values())
    return result


def counter_feed(step: int, micro_step: int, entropy: int, micro_batch: int = 0) -> dict[str, np.ndarray]:
    """Return the values of the two counters for one run of the graph.

    Args:
        step: Global step before the run, or INITIALIZATION_STEP.
        micro_step: Runs since the global step last changed, less than MOST_MICRO_STEPS: steps of gradient accumulation,
            or the batches of an evaluation or a prediction.
        entropy: Entropy for ops without a seed; any 64-bit number.
        micro_batch: Number of the micro-batch in the step, less than 2**22. Each has its own 2**40 counter values.

    Returns:
        Name of the tensor -> (2,) uint64, lower word first.
    """
    upper = np.uint64((step << 20 | micro_step) & (2**64 - 1)) if step != INITIALIZATION_STEP else np.uint64(step)
    first = micro_batch << _DRAWS_BITS
    return {
        f"{SEEDED_COUNTER}:0": np.array([first, upper], np.uint64),
        f"{UNSEEDED_COUNTER}:0": np.array([((entropy & (2**63 - 1)) + first) & (2**64 - 1), upper], np.uint64),
    }


def _counter_placeholder(name: str) -> NodeDef:
    node = NodeDef(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.uint64.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape([2]).as_proto())
    return node


@dataclass(frozen=True)
class _Scope:
    """Where an op runs: at the top level, in a loop iteration, or in a function. Attributes are input strings.

    Attributes:
        path: (1,) uint64; None at the top level, where it is 0.
        seeded: (2,) uint64, counter of ops with a seed.
        unseeded: (2,) uint64, counter of ops without a seed.
        algorithm: Scalar int32.
        control: Control inputs that put a constant into the loop.
    """

    path: str | None
    seeded: str
    unseeded: str
    algorithm: str
    control: tuple[str, ...] = ()


def _rewritten(
    nodes: list[NodeDef], table: NodeTable, body: Body, outside: _Scope, functions: _Functions
) -> list[NodeDef]:
    """Return the nodes with random ops replaced, and with calls changed if the function has random ops.

    Args:
        nodes: The nodes of a graph or a function.
        table: The same nodes.
        body: Receives the new nodes; it may already hold nodes that `outside` refers to.
        outside: The scope of nodes outside loops.
        functions: All functions.
    """
    frames = frames_of_nodes(table)
    loops = _Loops({node.name: node for node in nodes}, find_loops(table, frames), body, outside)
    for node in nodes:
        draws = is_replaceable(node)
        calls = not draws and functions.may_draw(node)
        if not draws and not calls:
            body.nodes.append(node)
            continue
        scope = loops.scope(frames.get(node.name, ()))
        if scope is None:
            body.nodes.append(node)
        elif draws:
            add_stateless(body, node, _source(body, node, scope))
        else:
            body.nodes.append(_call(body, node, scope, functions))
    return body.nodes


def _source(body: Body, node: NodeDef, scope: _Scope) -> Source:
    key = body.constant(f"{node.name}/cs_key", key_of_op(node), scope.control)
    if scope.path is not None:
        key = body.add(f"{node.name}/cs_key_of_path", "AddV2", [key, scope.path], {"T": UINT64}, "z")
    counter = scope.seeded if is_seeded(node) else scope.unseeded
    return Source(key, counter, scope.algorithm, scope.control)


def _call(body: Body, node: NodeDef, scope: _Scope, functions: _Functions) -> NodeDef:
    """Return a call that passes path and counters to the variants of its functions."""
    prefix = f"{node.name}/cs_random"
    own = key_of_text(node.name)
    if scope.path is None:
        path = body.constant(f"{prefix}/path", own * _FACTOR)
    else:
        name = body.constant(f"{prefix}/name", own, scope.control)
        path = _times_factor(body, prefix, [scope.path, name], scope.control)
    arguments = [path, scope.seeded, scope.unseeded]
    if node.op in LOOPS:
        arguments.append(body.constant(f"{prefix}/iteration", np.array([0], np.uint64), scope.control))
    names = {}
    for attribute, function in callees(node):
        use = (_CONDITION if attribute == "cond" else _LOOP_BODY) if node.op in LOOPS else _CALL
        names[f"{attribute}/{function}"] = functions.variant(function, use)
    return with_arguments(node, arguments, UINT64, _ARGUMENT_SHAPES[: len(arguments)], names)


def _times_factor(body: Body, prefix: str, terms: list[str], control: tuple[str, ...]) -> str:
    """Return (sum of the terms) * FACTOR."""
    total, *rest = terms
    for number, term in enumerate(rest):
        total = body.add(f"{prefix}/sum_{number}", "AddV2", [total, term], {"T": UINT64}, "z")
    factor = body.constant(f"{prefix}/factor", _FACTOR, control)
    return body.add(f"{prefix}/path", "Mul", [total, factor], {"T": UINT64}, "z")


class _Loops:
    """The scopes of loops of Enter, Merge, Switch and NextIteration. Loop counters are made on first use.

    Args:
        nodes: Nodes of the graph or the function, by name.
        loops: Loops by frame.
        body: Receives the new nodes.
        outside: The scope outside all loops.
    """

    def __init__(
        self, nodes: Mapping[str, NodeDef], loops: Mapping[tuple[str, ...], Loop], body: Body, outside: _Scope
    ) -> None:
        self._nodes = nodes
        self._loops = loops
        self._body = body
        self._scopes: dict[tuple[str, ...], _Scope | None] = {(): outside}

    def scope(self, frame: tuple[str, ...]) -> _Scope | None:
        """Return the scope inside a frame; None if we do not know its loop."""
        if frame not in self._scopes:
            outer = self.scope(frame[:-1])
            loop = self._loops.get(frame)
            self._scopes[frame] = self._inside(outer, loop) if outer is not None and loop is not None else None
        return self._scopes[frame]

    def _inside(self, outer: _Scope, loop: Loop) -> _Scope:
        body, like = self._body, self._nodes[loop.enter]
        prefix = f"{loop.enter}/cs_random"
        # If the loop is in a branch that is not taken, its new inputs must be dead too.
        body.add(f"{prefix}/guard", "Identity", [like.input[0]], {"T": like.attr["T"].type})
        guard = f"^{prefix}/guard"
        one = body.constant(f"{prefix}/one_outside", _ONE, (guard,))
        around = one
        if outer.path is not None:
            around = body.add(f"{prefix}/around", "AddV2", [outer.path, one], {"T": UINT64}, "z")
        zero = body.constant(f"{prefix}/zero", np.array([0], np.uint64), (guard,))
        entered = self._enter(f"{prefix}/enter_around", around, like, guard)
        seeded = self._enter(f"{prefix}/enter_seeded", outer.seeded, like, guard)
        unseeded = self._enter(f"{prefix}/enter_unseeded", outer.unseeded, like, guard)
        first = self._enter(f"{prefix}/enter_iteration", zero, like, guard, is_constant=False)
        merge = f"{prefix}/merge"
        iteration = body.add(merge, "Merge", [first, body.refer(f"{prefix}/next", "output")], {"T": UINT64})
        body.nodes[-1].attr["N"].i = 2
        condition = body.refer(loop.condition, "output")
        body.add(f"{prefix}/switch", "Switch", [iteration, condition], {"T": UINT64})
        alive = body.refer(f"{prefix}/switch", "output_true", 1)
        again = body.add(f"{prefix}/again", "Identity", [alive], {"T": UINT64})
        step = body.constant(f"{prefix}/one", _ONE, (f"^{prefix}/again",))
        following = body.add(f"{prefix}/following", "AddV2", [again, step], {"T": UINT64}, "z")
        body.add(f"{prefix}/next", "NextIteration", [following], {"T": UINT64})
        inside = (f"^{merge}",)
        path = _times_factor(body, f"{prefix}/inside", [iteration, entered], inside)
        algorithm = body.constant(f"{prefix}/algorithm", np.int32(PHILOX), inside)
        return _Scope(path, seeded, unseeded, algorithm, inside)

    def _enter(self, name: str, value: str, like: NodeDef, guard: str, is_constant: bool = True) -> str:
        result = self._body.add(name, "Enter", [value, guard], {"T": UINT64})
        node = self._body.nodes[-1]
        node.attr["frame_name"].CopyFrom(like.attr["frame_name"])
        node.attr["parallel_iterations"].CopyFrom(like.attr["parallel_iterations"])
        node.attr["is_constant"].b = is_constant
        return result


class _Functions:
    """The functions of a library, and variants that take path and counters as arguments.

    Args:
        library: All functions by name.

    Attributes:
        library: All functions by name.
        variants: New functions by name.
    """

    def __init__(self, library: Mapping[str, FunctionDef]) -> None:
        self.library = library
        self.variants: dict[str, FunctionDef] = {}
        own = [name for name, function in library.items() if any(map(is_replaceable, function.node_def))]
        self._drawing = functions_with(library, own)

    def may_draw(self, node: NodeDef) -> bool:
        """Whether a node may call a function that reaches a random op."""
        return bool(self._drawing) and is_plain_call(node, self.library) and self.draws(node)

    def draws(self, node: NodeDef) -> bool:
        """Whether a plain call reaches a random op."""
        return any(name in self._drawing for _, name in callees(node))

    def variant(self, name: str, use: str) -> str:
        """Return the name of a function's variant for one use; make it on first use."""
        new_name = f"{name}_cs_random_{use}"
        if new_name not in self.variants:
            new = copied(self.library[name])
            new.signature.name = new_name
            self.variants[new_name] = new  # before its body is rewritten: a recursive function calls itself
            self._rewrite(new, table_of_function(self.library[name]), use)
        return new_name

    def _rewrite(self, function: FunctionDef, table: NodeTable, use: str) -> None:
        function.attr.pop("_input_shapes", None)  # one for each argument
        arguments = list(_ARGUMENTS if use == _CALL else (*_ARGUMENTS, _LOOP_ARGUMENT))
        for argument in arguments:
            function.signature.input_arg.add(name=argument, type=UINT64)
        body = Body(True)
        path = arguments[0]
        if use != _CALL:
            one = body.constant("cs_random/one", _ONE)
            path = _times_factor(body, "cs_random", [path, arguments[3], one], ())
            if use == _LOOP_BODY:
                following = body.add("cs_random/following", "AddV2", [arguments[3], one], {"T": UINT64}, "z")
                for argument, value in zip(arguments, [*arguments[:3], following], strict=True):
                    function.signature.output_arg.add(name=f"{argument}_out", type=UINT64)
                    function.ret[f"{argument}_out"] = value
        scope = _Scope(path, arguments[1], arguments[2], body.constant(_ALGORITHM, np.int32(PHILOX)))
        nodes = _rewritten(list(function.node_def), table, body, scope, self)
        del function.node_def[:]
        function.node_def.extend(nodes)
