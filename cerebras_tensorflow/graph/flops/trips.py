"""How often the body of a loop runs, where its condition compares a counter with a known limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.graph.flops.functions import CalledBody, Functions
from cerebras_tensorflow.graph.function_calls import LOOPS

_BELOW = ("Less", "LessEqual")
_ABOVE = ("Greater", "GreaterEqual")
_SUMS = ("Add", "AddV2")
_PASSING = ("Identity", "Switch", "Enter")


def trips_of_call(operation: Any, functions: Functions) -> int | None:
    """Return how often a loop op of a function body runs it at most; None if that is unknown.

    Args:
        operation: The loop: While or StatelessWhile.
        functions: Those of its graph.
    """
    bodies: dict[str, CalledBody] = {body.attribute: body for body in functions.bodies_of(operation)}
    condition, body = bodies["cond"], bodies["body"]

    def start(index: int, at_most: bool) -> float | None:
        return _known_outside(operation.inputs[index], functions, at_most)

    def step(index: int) -> float | None:
        return _increment(body.results[index], lambda tensor: tensor.op.name == body.arguments[index])

    def trips(counter: Any, limit: Any, has_last: bool, sign: int) -> float | None:
        counter, limit = _source(counter), _source(limit)
        if counter.op.name not in condition.arguments:
            return None
        index = condition.arguments.index(counter.op.name)
        known = _known(limit, at_most=sign > 0)
        if limit.op.name in condition.arguments:
            place = condition.arguments.index(limit.op.name)
            is_kept = _source(body.results[place]).op.name == body.arguments[place]
            known = start(place, at_most=sign > 0) if is_kept else None
        return _count(start(index, at_most=sign < 0), known, step(index), has_last, sign)

    count = _fewest(condition.results[0], trips)
    return None if count is None else round(count)


def trips_of_frame(condition: Any) -> int | None:
    """Return how often a loop of Enter and Exit ops runs at most; None if that is unknown.

    Args:
        condition: Its LoopCond op.
    """

    def trips(counter: Any, limit: Any, has_last: bool, sign: int) -> float | None:
        merge = counter.op
        if merge.type != "Merge":
            return None
        start = next((value for value in merge.inputs if value.op.type == "Enter"), None)
        again = next((value for value in merge.inputs if value.op.type == "NextIteration"), None)
        if start is None or again is None:
            return None
        step = _increment(again.op.inputs[0], lambda tensor: tensor.op is merge)
        return _count(_known(start, at_most=sign < 0), _known(limit, at_most=sign > 0), step, has_last, sign)

    count = _fewest(condition.inputs[0], trips)
    return None if count is None else round(count)


def _count(start: float | None, limit: float | None, step: float | None, has_last: bool, sign: int) -> float | None:
    """Return the trips of a counter that goes up (sign 1) or down (-1) to a limit, and runs at it if has_last.

    More trips follow from a higher limit when it counts up, and from a higher start when it counts down. Only there may
    a number be the most that it can be; the other one and the step must be exact.
    """
    if start is None or limit is None or not step or step * sign < 0:
        return None
    distance = (limit - start) / step
    return max(0, math.floor(distance) + 1 if has_last else math.ceil(distance))


def _fewest(tensor: Any, trips: Callable[[Any, Any, bool, int], float | None]) -> float | None:
    """Return the smallest known number of trips that the comparisons of a condition allow; None if all are unknown.

    Args:
        tensor: The condition.
        trips: Takes the counter and the limit of a comparison, whether the limit is a trip, and the way it counts.
    """
    tensor = _source(tensor)
    if tensor.op.type == "LogicalAnd":
        counts = [_fewest(value, trips) for value in tensor.op.inputs]
        return min((count for count in counts if count is not None), default=None)
    kind = tensor.op.type
    if kind not in _BELOW + _ABOVE:
        return None
    lower, upper = tensor.op.inputs if kind in _BELOW else reversed(tensor.op.inputs)
    has_last = kind.endswith("Equal")
    up = trips(lower, upper, has_last, 1)
    return trips(upper, lower, has_last, -1) if up is None else up


def _increment(tensor: Any, is_counter: Callable[[Any], bool]) -> float | None:
    """Return what a loop adds to its counter."""
    tensor = _source(tensor)
    if tensor.op.type not in (*_SUMS, "Sub"):
        return None
    one, other = map(_source, tensor.op.inputs)
    if tensor.op.type == "Sub":
        taken = _known(other) if is_counter(one) else None
        return None if taken is None else -taken
    if is_counter(other):
        one, other = other, one
    return _known(other) if is_counter(one) else None


def _source(tensor: Any) -> Any:
    while tensor.op.type in _PASSING and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _known_outside(tensor: Any, functions: Functions, at_most: bool) -> float | None:
    """Return the value of a number that a loop gets, or the most that it can be; None if that is unknown.

    The gradient of a loop runs as often as the loop: its limit is the loop's own counter, the first result.
    """
    tensor = _source(tensor)
    if at_most and tensor.op.type in LOOPS and tensor.value_index == 0:
        return trips_of_call(tensor.op, functions)
    return _known(tensor, at_most)


def _known(tensor: Any, at_most: bool = False) -> float | None:
    """Return the value of a number, or the most that it can be; None if that is unknown.

    Args:
        tensor: The number.
        at_most: Whether the most is enough. A minimum, such as the limit of dynamic_rnn (the longest sequence, padded
            to a fixed length), has one if one of its inputs does.
    """
    tensor = _source(tensor)
    if at_most and tensor.op.type == "Minimum":
        return min((known for value in tensor.op.inputs if (known := _known(value, True)) is not None), default=None)
    value = tf.get_static_value(tensor)
    return float(value) if value is not None and value.shape == () else None
