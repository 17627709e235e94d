"""performance.json: measured figures of a run, and simulated ones that are labelled as such."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from cerebras_tensorflow import files

logger = logging.getLogger(__name__)

# Above this share of training time spent waiting for batches, more input workers would help.
_BOTTLENECK_SHARE = 0.1


# Fields of a run on several CSX. The original has no such fields.
_SEVERAL_CSX = (
    "num_csx",
    "wire_bytes_sent_per_step",
    "wire_bytes_received_per_step",
    "planned_wire_bytes_sent_per_step",
    "planned_wire_bytes_received_per_step",
)


@dataclass(frozen=True)
class Performance:
    """The fields of performance.json, with the original's names.

    Attributes:
        compile_time: Measured [s]. 0 if a cached Program was used.
        programming_time: Measured time to load the Program and its weights [s].
        samples_per_sec: Measured.
        total_samples: Samples of this run.
        total_time: Measured training time [s], without saving.
        est_samples_per_sec: Simulated speed of a CS-2.
        suspected_input_bottleneck: Whether steps waited for input for more than a tenth of the time.
        num_csx: CSX of the run. The file has this field and the next ones only if there are several.
        wire_bytes_sent_per_step, wire_bytes_received_per_step: What a CSX sends and receives in a step, of gradients
            and of weights, measured on the first one [B].
        planned_wire_bytes_sent_per_step, planned_wire_bytes_received_per_step: The same, planned from the compiled
            step [B].
    """

    compile_time: float
    programming_time: float
    samples_per_sec: float
    total_samples: int
    total_time: float
    est_samples_per_sec: float
    suspected_input_bottleneck: bool
    num_csx: int = 1
    wire_bytes_sent_per_step: float = 0.0
    wire_bytes_received_per_step: float = 0.0
    planned_wire_bytes_sent_per_step: float = 0.0
    planned_wire_bytes_received_per_step: float = 0.0


def is_input_bound(input_wait_share: float) -> bool:
    """Whether input is probably the bottleneck."""
    return input_wait_share > _BOTTLENECK_SHARE


def write(model_dir: str, performance: Performance) -> Path | None:
    """Write `<model_dir>/performance/performance.json`.

    Returns:
        Its path. None if it could not be written: the run has saved by then, so a warning is enough.
    """
    path = Path(model_dir) / "performance" / "performance.json"
    content = {**asdict(performance), "simulated": ["est_samples_per_sec"]}
    if performance.num_csx == 1:
        content = {name: value for name, value in content.items() if name not in _SEVERAL_CSX}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, json.dumps(content, indent=4, sort_keys=True) + "\n")
    except OSError as error:
        logger.warning("%s could not be written (%s). The run and its checkpoints are not affected.", path, error)
        return None
    return path
