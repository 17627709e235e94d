"""Replace TensorFlow's stateful random ops with stateless ones.

The new node keeps the name of the old one, its device and its control inputs. It draws from a Philox generator
(Salmon et al. 2011, doi:10.1145/2063384.2063405) whose key and counter are inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.bodies import UINT64, Body, control_inputs, data_inputs
from cerebras_tensorflow.graph.nodes import NodeDef

_INT32 = tf.int32.as_datatype_enum
_INT64 = tf.int64.as_datatype_enum
PHILOX = 1  # the number of the algorithm in TensorFlow's random ops

# Ops with a stateless counterpart that takes (shape, key, counter, algorithm, ...).
_WITH_KEY = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}


@dataclass(frozen=True)
class Source:
    """Where an op draws from, as input strings.

    Attributes:
        key: (1,) uint64.
        counter: (2,) uint64, lower word first.
        algorithm: Scalar int32.
        control: Control inputs for new constants, so that they run in the op's loop.
    """

    key: str
    counter: str
    algorithm: str
    control: tuple[str, ...] = ()


def is_replaceable(node: NodeDef) -> bool:
    """Whether a node is a stateful random op with a stateless counterpart."""
    return node.op in _WITH_KEY or node.op in _REPLACEMENTS


def is_seeded(node: NodeDef) -> bool:
    """Whether an op has a seed: its own, or the graph's."""
    return bool(node.attr["seed"].i or node.attr["seed2"].i)


def key_of_op(node: NodeDef) -> np.ndarray:
    """Return the (1,) uint64 key of an op: from its seeds, or from its name if it has none."""
    seeds = f"{node.attr['seed'].i},{node.attr['seed2'].i}"
    identity = seeds if node.op in _WITH_KEY else f"{node.op}:{seeds}"
    return key_of_text(identity if is_seeded(node) else node.name)


def key_of_text(text: str) -> np.ndarray:
    """Return the hash of a text as (1,) uint64; equal in all processes."""
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint64)


def add_stateless(body: Body, node: NodeDef, source: Source) -> None:
    """Add the nodes that replace a random op.

    Args:
        body: Receives the new nodes.
        node: The op.
        source: Where it draws from.
    """
    if node.op in _WITH_KEY:
        shape, *rest = data_inputs(node)
        new = _new(node, _WITH_KEY[node.op], [shape, *_key_inputs(source), *rest])
        new.attr["Tshape"].CopyFrom(node.attr["T"])
        new.attr["dtype"].CopyFrom(node.attr["Tout" if node.op == "RandomUniformInt" else "dtype"])
        body.nodes.append(new)
    else:
        body.nodes.append(_REPLACEMENTS[node.op](body, node, source))


def _new(node: NodeDef, op: str, inputs: Iterable[str]) -> NodeDef:
    new = NodeDef(name=node.name, op=op, device=node.device, input=[*inputs, *control_inputs(node)])
    if "_class" in node.attr:
        new.attr["_class"].CopyFrom(node.attr["_class"])
    return new


def _key_inputs(source: Source) -> tuple[str, str, str]:
    return source.key, source.counter, source.algorithm


def _seed(body: Body, node: NodeDef, source: Source) -> str:
    """Return the (2,) int64 seed [key + lower word, upper word], for ops without inputs for key and counter."""
    prefix = f"{node.name}/cs_seed"
    first = body.constant(f"{prefix}/first", np.array([1, 0], np.uint64), source.control)
    key = body.add(f"{prefix}/key", "Mul", [source.key, first], {"T": UINT64}, "z")
    words = body.add(f"{prefix}/words", "AddV2", [key, source.counter], {"T": UINT64}, "z")
    return body.add(prefix, "Bitcast", [words], {"T": UINT64, "type": _INT64})


def _with_shape_of(body: Body, node: NodeDef, source: Source, parameter: str, dtypes: tuple[str, str]) -> str:
    """Return the full output shape of an op that draws `shape` values per element of a parameter.

    Args:
        body: Receives the new nodes.
        node: The op.
        source: Where it draws from.
        parameter: The parameter, as an input string.
        dtypes: Names of the op's attributes with the dtypes of shape and parameter.
    """
    prefix = f"{node.name}/cs_shape"
    shape_type = node.attr[dtypes[0]].type
    inner = body.add(f"{prefix}/inner", "Shape", [parameter], {"T": node.attr[dtypes[1]].type, "out_type": shape_type})
    axis = body.constant(f"{prefix}/axis", np.int32(0), source.control)
    whole = body.add(prefix, "ConcatV2", [data_inputs(node)[0], inner, axis], {"T": shape_type, "Tidx": _INT32})
    body.nodes[-1].attr["N"].i = 2
    return whole


def _gamma(body: Body, node: NodeDef, source: Source) -> NodeDef:
    alpha = data_inputs(node)[1]
    shape = _with_shape_of(body, node, source, alpha, ("S", "T"))
    new = _new(node, "StatelessRandomGammaV3", [shape, *_key_inputs(source), alpha])
    new.attr["dtype"].CopyFrom(node.attr["T"])
    new.attr["shape_dtype"].CopyFrom(node.attr["S"])
    return new


def _poisson(body: Body, node: NodeDef, source: Source) -> NodeDef:
    rate = data_inputs(node)[1]
    shape = _with_shape_of(body, node, source, rate, ("S", "R"))
    new = _new(node, "StatelessRandomPoisson", [shape, _seed(body, node, source), rate])
    new.attr["Rtype"].CopyFrom(node.attr["R"])
    new.attr["dtype"].CopyFrom(node.attr["dtype"])
    new.attr["T"].CopyFrom(node.attr["S"])
    new.attr["Tseed"].type = _INT64
    return new


def _multinomial(body: Body, node: NodeDef, source: Source) -> NodeDef:
    new = _new(node, "StatelessMultinomial", [*data_inputs(node), _seed(body, node, source)])
    new.attr["T"].CopyFrom(node.attr["T"])
    new.attr["output_dtype"].CopyFrom(node.attr["output_dtype"])
    new.attr["Tseed"].type = _INT64
    return new


def _shuffle(_body: Body, node: NodeDef, source: Source) -> NodeDef:
    new = _new(node, "StatelessShuffle", [*data_inputs(node), *_key_inputs(source)])
    new.attr["T"].CopyFrom(node.attr["T"])
    return new


def _truncated_normal(body: Body, node: NodeDef, source: Source) -> NodeDef:
    """Return a truncated normal whose parameters are scalars, or vectors with one number per index of dim 0."""
    shape, *parameters = data_inputs(node)
    prefix = f"{node.name}/cs_rows"
    shape_type, dtype = node.attr["T"].type, node.attr["dtype"].type
    like_shape = body.add(f"{prefix}/ones", "OnesLike", [shape], {"T": shape_type}, "y")
    begin = body.constant(f"{prefix}/begin", np.array([1], np.int32), source.control)
    end = body.constant(f"{prefix}/size", np.array([-1], np.int32), source.control)
    rest = body.add(f"{prefix}/rest", "Slice", [like_shape, begin, end], {"T": shape_type, "Index": _INT32})
    wide = body.add(f"{prefix}/wide", "Cast", [rest], {"SrcT": shape_type, "DstT": _INT64}, "y")
    first = body.constant(f"{prefix}/first", np.array([-1], np.int64), source.control)
    axis = body.constant(f"{prefix}/axis", np.int32(0), source.control)
    rows = body.add(prefix, "ConcatV2", [first, wide, axis], {"T": _INT64, "Tidx": _INT32})
    body.nodes[-1].attr["N"].i = 2
    broadcast = [
        body.add(f"{prefix}/parameter_{number}", "Reshape", [parameter, rows], {"T": dtype, "Tshape": _INT64})
        for number, parameter in enumerate(parameters)
    ]
    # The op requires that the parameters broadcast to the output shape, so the means get the full output shape.
    types = {"T": dtype, "Tidx": shape_type}
    broadcast[0] = body.add(f"{prefix}/means", "BroadcastTo", [broadcast[0], shape], types)
    new = _new(node, "StatelessParameterizedTruncatedNormal", [shape, _seed(body, node, source), *broadcast])
    new.attr["S"].type, new.attr["Tseed"].type, new.attr["dtype"].type = shape_type, _INT64, dtype
    return new


def _bounding_box(body: Body, node: NodeDef, source: Source) -> NodeDef:
    inputs = data_inputs(node)
    if node.op == "SampleDistortedBoundingBox":
        covered = np.float32(node.attr["min_object_covered"].f)
        inputs.append(body.constant(f"{node.name}/cs_covered", covered, source.control))
    new = _new(node, "StatelessSampleDistortedBoundingBox", [*inputs, _seed(body, node, source)])
    for name in ("T", "aspect_ratio_range", "area_range", "max_attempts", "use_image_if_no_bounding_boxes"):
        if name in node.attr:
            new.attr[name].CopyFrom(node.attr[name])
    new.attr["Tseed"].type = _INT64
    return new


_REPLACEMENTS: dict[str, Callable[[Body, NodeDef, Source], NodeDef]] = {
    "RandomGamma": _gamma,
    "RandomPoissonV2": _poisson,
    "Multinomial": _multinomial,
    "RandomShuffle": _shuffle,
    "ParameterizedTruncatedNormal": _truncated_normal,
    "SampleDistortedBoundingBox": _bounding_box,
    "SampleDistortedBoundingBoxV2": _bounding_box,
}
