"""Finds the layer that is computed at each time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cerebras_tensorflow.graph.scopes import layer_of
from cerebras_tensorflow.perf.timeline import Span


@dataclass(frozen=True)
class LayerSpan:
    """An interval in which one layer is computed.

    Attributes:
        layer: From graph.scopes.layer_of.
        begin_s: From the beginning of the step [s].
        end_s: From the beginning of the step [s].
    """

    layer: str
    begin_s: float
    end_s: float


def layer_spans(spans: Iterable[Span], length_s: float, num_bins: int) -> list[LayerSpan]:
    """Return the layer that is computed at each time, at the resolution of a picture.

    The time is cut into bins. Each bin shows the layer that takes most of it. Neighbouring bins of one layer are
    merged.

    Args:
        spans: Spans of the compute stream, one for each run of an op.
        length_s: Time that the bins cover [s].
        num_bins: Number of bins.
    """
    bin_s = length_s / num_bins
    shares: list[dict[str, float]] = [defaultdict(float) for _ in range(num_bins)]
    for span in spans:
        layer = layer_of(span.name)
        for number in range(int(span.begin_s / bin_s), min(int(span.end_s / bin_s), num_bins - 1) + 1):
            begin_s, end_s = number * bin_s, (number + 1) * bin_s
            inside_s = min(span.end_s, end_s) - max(span.begin_s, begin_s)
            if inside_s > 0:
                shares[number][layer] += inside_s
    merged: list[LayerSpan] = []
    for number, share in enumerate(shares):
        if not share:
            continue
        layer = max(share, key=share.__getitem__)
        begin_s, end_s = number * bin_s, (number + 1) * bin_s
        last = merged[-1] if merged else None
        if last is not None and last.layer == layer and last.end_s >= begin_s - bin_s / 2:
            merged[-1] = LayerSpan(layer, last.begin_s, end_s)
        else:
            merged.append(LayerSpan(layer, begin_s, end_s))
    return merged


def short_names(layers: Iterable[str]) -> dict[str, str]:
    """Return the layers' names without the scopes that all of them share. Ops without a scope are "other".

    >>> short_names(["model/layer_0", "model/layer_1", "model/head", ""])
    {'model/layer_0': 'layer_0', 'model/layer_1': 'layer_1', 'model/head': 'head', '': 'other'}
    """
    names = list(dict.fromkeys(layers))
    parts = [name.split("/") for name in names if name]
    shared = 0
    while len(parts) > 1 and all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return {name: "/".join(name.split("/")[shared:]) if name else "other" for name in names}
