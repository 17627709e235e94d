"""Draws docs/images/step_timeline.png: a streamed training step, as cs-plan would plan it.

Usage: python scripts/draw_timeline.py [--check]

The step trains six blocks of GPT-2 small, with a small vocabulary, whose weights are in a file. The machine's rates are
fixed here, so that the picture is the same on every machine; its label says that it is planned. step_timeline.json next
to it holds the figures of the picture. --check compares them with the current compiler and exits with 1 if they differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "step_timeline.png"
FIGURES = PICTURE.with_suffix(".json")
CONFIG = ROOT / "reference_implementations" / "gpt2" / "configs" / "params_small.yaml"
BATCH, SEQUENCE, BLOCKS, VOCABULARY, WINDOW_BYTES = 1, 256, 6, 4096, 48 << 20
# Assumed: about those of a laptop with two cores and a fast disk.
GFLOPS_PER_S, MEMORY_GB_PER_S, READ_GB_PER_S, WRITE_GB_PER_S = 50, 5, 1, 1

sys.path.insert(0, str(ROOT))


def planned() -> Any:
    """Return the timeline."""
    from cerebras_tensorflow.config.env import WEIGHT_STREAMING
    from cerebras_tensorflow.estimator.config.cs_config import CSConfig
    from cerebras_tensorflow.estimator.config.run_config import CSRunConfig
    from cerebras_tensorflow.planner.plan import plan_step, timeline
    from cerebras_tensorflow.planner.rates import Rates
    from cerebras_tensorflow.planner.shapes import ShapeInputs, parse_shape
    from reference_implementations.gpt2.model import model_fn
    from reference_implementations.gpt2.run import MODEL

    params = MODEL.read_params(str(CONFIG))
    params["model"] |= {"num_hidden_layers": BLOCKS, "vocab_size": VOCABULARY, "mixed_precision": False}
    # Clipping by the norm of all gradients would make every update wait for the last gradient.
    params["optimizer"] |= {"optimizer_type": "adam", "max_gradient_norm": None, "weight_decay_rate": 0.0}
    shape = f"int32:{BATCH}x{SEQUENCE}"
    features = [parse_shape(f"input_ids={shape}"), parse_shape(f"input_mask=float32:{BATCH}x{SEQUENCE}")]
    inputs = ShapeInputs(features, [parse_shape(shape)])
    settings = CSConfig(weight_store="file", stream_window_bytes=WINDOW_BYTES, memory_budget="100GB")
    plan = plan_step(model_fn, inputs, params, CSRunConfig(), "train", WEIGHT_STREAMING, settings)
    rates = Rates(GFLOPS_PER_S * 1e9, MEMORY_GB_PER_S * 1e9, READ_GB_PER_S * 1e9, WRITE_GB_PER_S * 1e9)
    return timeline(plan, rates, f"{BLOCKS} blocks of GPT-2 small, batch {BATCH}, {SEQUENCE} tokens")


def figures(line: Any) -> dict[str, Any]:
    """Return the figures of a timeline and a digest of the code that draws it, to detect a stale picture."""
    from cerebras_tensorflow.perf import layers, picture
    from cerebras_tensorflow.perf.timeline import STREAMS

    spans = sorted((s.stream, s.name, round(s.begin_s, 4), round(s.end_s, 4), s.num_bytes) for s in line.spans)
    return {
        "title": line.title,
        "label": line.label,
        "step_ms": round(line.end_s * 1e3),
        "moves_beside_computation_percent": round(100 * line.overlap()),
        "peak_mb": round(max(size for _, size in line.memory) / 1e6),
        "spans": {stream: sum(span.stream == stream for span in line.spans) for stream in STREAMS},
        "sha256_of_drawing": hashlib.sha256(
            b"".join(Path(str(m.__file__)).read_bytes() for m in (layers, picture))
        ).hexdigest(),
        "sha256_of_spans": hashlib.sha256(json.dumps(spans).encode()).hexdigest(),
    }


def main() -> int:
    """Draw the picture, or check its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed figures; draw nothing")
    options = parser.parse_args()
    line = planned()
    text = json.dumps(figures(line), indent=2) + "\n"
    if options.check:
        is_same = FIGURES.read_text(encoding="utf-8") == text
        if not is_same:
            print(f"{PICTURE.name} shows another step than this: run scripts/draw_timeline.py\n{text}", file=sys.stderr)
        return 0 if is_same else 1
    from cerebras_tensorflow.perf.picture import write_picture

    write_picture(PICTURE, line)
    FIGURES.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
