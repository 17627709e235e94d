"""Rewriting a dataset so that its maps come after the steps that only choose elements; the batches stay the same.

`map(f).shuffle(n).repeat().batch(b).skip(k)` yields what `shuffle(n).repeat().skip(k * b).map(f).batch(b)` yields, if f
depends on its element alone: shuffling, repeating, skipping and taking look at no element. Input workers can then skip
what is not theirs before the maps instead of after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private

MAPS = {"MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"}
PASSING = {"PrefetchDataset", "OptionsDataset", "ModelDataset"}
COUNTING = {"SkipDataset", "TakeDataset"}
CHOOSING = COUNTING | {
    "ShuffleDataset",
    "ShuffleDatasetV2",
    "ShuffleDatasetV3",
    "ShuffleAndRepeatDataset",
    "ShuffleAndRepeatDatasetV2",
    "RepeatDataset",
}
BATCHING = {"BatchDataset", "BatchDatasetV2", "ParallelBatchDataset"}
MAP_AND_BATCH = {"MapAndBatchDataset"}
HARMLESS = {"Assert"}  # stateful only so that it is never left out


def maps_last(variant: Any) -> Any:
    """Return a dataset of the same batches as a variant in the same graph; the given one if nothing can be gained."""
    after, batching = _upwards(variant.op)
    before, source = _upwards(batching.inputs[0].op) if batching.type in BATCHING | MAP_AND_BATCH else ([], batching)
    if source is batching:
        before, after = after, []
    moved = [step for step in after if step.type in CHOOSING]
    if not all(step.type in COUNTING and _count(step) is not None for step in moved):
        return variant  # an element is a batch there, and shuffling batches is not shuffling their elements
    chosen = [step for step in before if step.type in CHOOSING]
    first_map = next((place for place, step in enumerate(before) if step.type in MAPS), len(before))
    is_mapped_first = any(step.type in CHOOSING for step in before[first_map:])
    is_mapped_before = first_map < len(before) or batching.type in MAP_AND_BATCH
    if not (is_mapped_first or (moved and is_mapped_before)) or _has_state(variant.graph):
        return variant
    graph_def = variant.graph.as_graph_def()
    needed = {step.name for step in upstream(variant.op)}
    for node in [node for node in graph_def.node if node.name not in needed]:
        graph_def.node.remove(node)
    nodes = {node.name: node for node in graph_def.node}
    order = [*chosen, *moved, *(step for step in before if step not in chosen)]
    if source is not batching:
        order += [batching, *(step for step in after if step not in moved)]
    end = source
    for step in order:
        node = nodes[step.name]
        node.input[0] = end.name
        if step in chosen or step in moved:  # it sees the source's elements now
            for name in ("output_types", "output_shapes"):
                node.attr[name].CopyFrom(source.node_def.attr[name])
        if step in moved:
            count = graph_def.node.add(name=f"{step.name}/elements", op="Const")
            value = _count(step) * batch_size_of(batching) if _count(step) > 0 else _count(step)
            count.attr["dtype"].type = tf.int64.as_datatype_enum
            count.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
            node.input[1] = count.name
        end = step
    kept = source.outputs[0]
    (found,) = tf.import_graph_def(
        graph_def, input_map={kept.name: kept}, return_elements=[f"{end.name}:0"], name="maps_last"
    )
    return found


def upstream(operation: Any) -> Iterator[Any]:
    """Yield an op and all that it depends on."""
    seen, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        if current.name not in seen:
            seen.add(current.name)
            yield current
            waiting += [*(value.op for value in current.inputs), *current.control_inputs]


def batch_size_of(batching: Any) -> int:
    """Return the number of elements in the batches that an op makes."""
    return int(tf.get_static_value(batching.inputs[-3 if batching.type in MAP_AND_BATCH else 1]))


def _upwards(operation: Any) -> tuple[list[Any], Any]:
    """Return the steps that end with an op, in the order in which elements pass, and the op before them."""
    found = []
    while operation.type in MAPS | PASSING | CHOOSING:
        found.append(operation)
        operation = operation.inputs[0].op
    return found[::-1], operation


def _count(step: Any) -> Any:
    return tf.get_static_value(step.inputs[1])


def map_has_state(operation: Any) -> bool:
    """Return whether a map's result may depend on more than its arguments, as that of a random op does."""
    functions = {function.signature.name: function for function in operation.graph.as_graph_def().library.function}
    waiting, seen = [operation.get_attr("f").name], set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in functions[name].node_def:
            if _keeps_state(node.op):
                return True
            called = [node.op, *(attribute.func.name for attribute in node.attr.values())]
            called += [function.name for attribute in node.attr.values() for function in attribute.list.func]
            waiting += called
    return False


def _has_state(graph: Any) -> bool:
    """Return whether any function of a graph, such as what a map does, may depend on more than its arguments."""
    functions = graph.as_graph_def().library.function
    return any(_keeps_state(node.op) for function in functions for node in function.node_def)


def _keeps_state(op: str) -> bool:
    definition = tf_private.op_definition(op)
    return op not in HARMLESS and definition is not None and bool(definition.is_stateful)
