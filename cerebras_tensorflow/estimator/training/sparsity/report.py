"""What is sparse, by weight: a log line, TensorBoard scalars, and `sparsity.json` in the model_dir."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.event_writers import EventFile
from cerebras_tensorflow.estimator.model.sparse_weights import SparseWeight
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.html.content import SparseShare
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.sparsity.selection import Mask


class SparsityReport:
    """Reports the sparsity of a run. TensorBoard's tags are those of the published 2.x releases.

    Args:
        path: The JSON file: {"global_step", "sparsity", "weights": {name: {"shape", "algorithm", "target", "actual"}}}.
        events: The event file; None: write no scalars.
        show: Receives the sparse weights each time, for the report of the run.
    """

    def __init__(
        self, path: str, events: EventFile | None, show: Callable[[Sequence[SparseShare]], None] | None = None
    ) -> None:
        self._path = path
        self._events = events
        self._show = show
        self._rows: dict[str, dict[str, Any]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}  # weight -> masked elements, all elements

    def count(self, weight: SparseWeight, mask: Mask, step: int) -> None:
        """Note the mask of a weight after a step."""
        masked = mask.size - int(np.count_nonzero(mask))
        self._sizes[weight.name] = masked, mask.size
        self._rows[weight.name] = {
            "shape": list(weight.shape),
            "algorithm": type(weight.algorithm).__name__.lower() if weight.algorithm is not None else "sparsifier",
            "target": round(float(weight.algorithm.target(step)), 6) if weight.algorithm is not None else None,
            "actual": masked / mask.size,
        }

    def write(self, step: int) -> None:
        """Write what was counted."""
        masked, total = (sum(sizes) for sizes in zip(*self._sizes.values(), strict=True))
        sparse = sum(1 for held, _ in self._sizes.values() if held)
        run_log.info(
            "Sparsity at global step %d: %d of %d weights are zero, in %d of %d variables.",
            *(step, masked, total, sparse, len(self._sizes)),
        )
        for name, row in self._rows.items():
            run_log.debug("Sparsity of %s: %.4f", name, row["actual"])
        if self._events is not None:
            self._events.add_summary(self._summary(), step)
        if self._show is not None:
            rows = self._rows.items()
            self._show([SparseShare(name, row["algorithm"], row["target"], row["actual"]) for name, row in rows])
        content = {"global_step": step, "sparsity": masked / total, "weights": self._rows}
        try:
            write_file(self._path, (json.dumps(content, indent=2) + "\n").encode())
        except (OSError, CheckpointError) as error:
            run_log.warning("%s cannot be written: %s. The run goes on.", self._path, error)

    def _summary(self) -> Any:
        """Return the scalars: the actual sparsity of each weight, and the target of all weights with one algorithm."""
        values = {f"sparsity/{name}/actual": row["actual"] for name, row in self._rows.items()}
        targets: dict[tuple[str, float], list[str]] = {}
        for name, row in self._rows.items():
            if row["target"] is not None:
                targets.setdefault((row["algorithm"], row["target"]), []).append(name)
        for (_, target), names in targets.items():
            values[f"sparsity/{_common_start(names)}*/target"] = target
        value = tf.compat.v1.Summary.Value
        return tf.compat.v1.Summary(value=[value(tag=tag, simple_value=number) for tag, number in values.items()])


def _common_start(names: Sequence[str]) -> str:
    """Return the characters that all names start with.

    >>> _common_start(["fc1/kernel", "fc2/kernel"])
    'fc'
    """
    first, last = min(names), max(names)
    same = (i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(same, min(len(first), len(last)))]
