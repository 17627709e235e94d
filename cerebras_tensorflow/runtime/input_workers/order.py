"""Reorders a dataset: maps move behind the steps that only choose elements. The batches stay the same.

`map(f).shuffle(n).repeat().batch(b).skip(k)` and `shuffle(n).repeat().skip(k * b).map(f).batch(b)` yield the same if f
depends on its element only, because shuffle, repeat, skip and take do not look at elements. An input worker can then
skip other workers' elements before the maps instead of after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
HARMLESS = {"Assert"}  # marked stateful only so that TensorFlow does not prune it


@dataclass(frozen=True)
class _Pipeline:
    """The steps of a dataset from its source to its end. Each list is in the order of the data flow.

    Attributes:
        source: The op that yields the elements.
        before: Steps before the batching. All steps if there is no batching.
        batching: The op that makes batches. None if there is none.
        after: Steps after the batching.
    """

    source: Any
    before: list[Any]
    batching: Any | None
    after: list[Any]

    @staticmethod
    def of(end: Any) -> _Pipeline:
        """Return the steps that lead to an op."""
        after, batching = _upwards(end)
        if batching.type not in BATCHING | MAP_AND_BATCH:
            return _Pipeline(batching, after, None, [])
        before, source = _upwards(batching.inputs[0].op)
        return _Pipeline(source, before, batching, after)

    @property
    def moved(self) -> list[Any]:
        """Steps after the batching that choose elements. They can move before it."""
        return [step for step in self.after if step.type in CHOOSING]

    @property
    def chosen(self) -> list[Any]:
        """Steps before the batching that choose elements."""
        return [step for step in self.before if step.type in CHOOSING]

    def gains(self) -> bool:
        """Return whether maps can move to a later place without a change to the batches."""
        # After the batching, shuffle would move whole batches. Before it, shuffle would mix their elements.
        if not all(step.type in COUNTING and _count(step) is not None for step in self.moved):
            return False
        first_map = next((place for place, step in enumerate(self.before) if step.type in MAPS), len(self.before))
        maps_before_a_choice = any(step.type in CHOOSING for step in self.before[first_map:])
        batching_maps = self.batching is not None and self.batching.type in MAP_AND_BATCH
        return maps_before_a_choice or bool(self.moved and (first_map < len(self.before) or batching_maps))

    def maps_last(self) -> list[Any]:
        """Return all steps in their new order: steps that choose elements, then maps, then the batching."""
        order = [*self.chosen, *self.moved, *(step for step in self.before if step not in self.chosen)]
        if self.batching is not None:
            order += [self.batching, *(step for step in self.after if step not in self.moved)]
        return order


def maps_last(variant: Any) -> Any:
    """Return a variant of the same batches with its maps last. Return the given one if there is nothing to gain."""
    pipeline = _Pipeline.of(variant.op)
    if not pipeline.gains() or _has_state(variant.graph):
        return variant
    graph_def = variant.graph.as_graph_def()
    needed = {step.name for step in upstream(variant.op)}
    for node in [node for node in graph_def.node if node.name not in needed]:
        graph_def.node.remove(node)
    nodes = {node.name: node for node in graph_def.node}
    end = pipeline.source
    for step in pipeline.maps_last():
        node = nodes[step.name]
        node.input[0] = end.name
        if step in pipeline.chosen or step in pipeline.moved:  # its input is now the source's elements
            for name in ("output_types", "output_shapes"):
                node.attr[name].CopyFrom(pipeline.source.node_def.attr[name])
        if step in pipeline.moved:
            node.input[1] = _add_element_count(graph_def, step, batch_size_of(pipeline.batching))
        end = step
    source = pipeline.source.outputs[0]
    (reordered,) = tf.import_graph_def(
        graph_def, input_map={source.name: source}, return_elements=[f"{end.name}:0"], name="maps_last"
    )
    return reordered


def _add_element_count(graph_def: Any, step: Any, batch_size: int) -> str:
    """Convert a step's count of batches to a count of elements. Add it to a graph and return its node's name."""
    node = graph_def.node.add(name=f"{step.name}/elements", op="Const")
    count = _count(step) * batch_size if _count(step) > 0 else _count(step)  # a negative count means all
    node.attr["dtype"].type = tf.int64.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(count, tf.int64))
    return str(node.name)


def upstream(operation: Any) -> Iterator[Any]:
    """Yield an op and all ops that it depends on."""
    seen, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        if current.name not in seen:
            seen.add(current.name)
            yield current
            waiting += [*(value.op for value in current.inputs), *current.control_inputs]


def computes_ahead(operation: Any) -> bool:
    """Return whether a dataset's last steps compute elements before they are asked for."""
    while operation.type in PASSING | BATCHING:
        if operation.type == "PrefetchDataset" or operation.type.startswith("Parallel"):
            return True
        operation = operation.inputs[0].op
    return operation.type.startswith("Parallel") or operation.type in MAP_AND_BATCH


def batch_size_of(batching: Any) -> int:
    """Return the number of elements in the batches that an op makes."""
    return int(tf.get_static_value(batching.inputs[-3 if batching.type in MAP_AND_BATCH else 1]))


def _upwards(operation: Any) -> tuple[list[Any], Any]:
    """Return the steps that end with an op, in the order of the data flow, and the op before them."""
    steps = []
    while operation.type in MAPS | PASSING | CHOOSING:
        steps.append(operation)
        operation = operation.inputs[0].op
    return steps[::-1], operation


def _count(step: Any) -> Any:
    return tf.get_static_value(step.inputs[1])


def map_has_state(operation: Any) -> bool:
    """Return whether a map's result may depend on more than its arguments, for example on a random op."""
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
    """Return whether the result of any function of a graph may depend on more than its arguments."""
    functions = graph.as_graph_def().library.function
    return any(_keeps_state(node.op) for function in functions for node in function.node_def)


def _keeps_state(op: str) -> bool:
    definition = tf_private.op_definition(op)
    return op not in HARMLESS and definition is not None and bool(definition.is_stateful)
