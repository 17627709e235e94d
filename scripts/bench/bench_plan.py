"""How long and how much memory does planning a large model take, and what does the plan say?

    python scripts/bench/bench_plan.py

Runs `cs-plan` for GPT-J 6B, the shapes of GPT-NeoX 20B and GPT-3 175B, and Llama 2 70B, each in its own process. Prints
the report, wall time [s], processor time [s] and peak resident set [bytes].
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = {
    "gptj_6b": ("gptj", "params_continuous_pretraining.yaml"),
    "gpt_neox_20b_shape": ("gptj", "params_neox_20b_shape.yaml"),
    "gpt3_175b": ("gpt3", "params_175b.yaml"),
    "llama2_70b": ("llama", "params_2_70b.yaml"),
}


def main() -> None:
    """Run the benchmark; print the reports and one JSON object."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--sequence", type=int, default=2048)
    options.add_argument("--store_dir", default="/tmp", help="folder on the disk of the weight store")
    chosen = options.parse_args()
    results = {}
    for name in chosen.models:
        model, config = MODELS[name]
        folder = ROOT / "reference_implementations" / model
        shape = f"int32:{chosen.batch}x{chosen.sequence}"
        command = [
            sys.executable, "-m", "cerebras_tensorflow.planner.cli", str(folder / "run.py"),
            "--params", str(folder / "configs" / config), "--store_dir", chosen.store_dir,
            "--input", f"input_ids={shape}", "--input", f"input_mask={shape}", "--labels", shape,
        ]  # fmt: skip
        begin_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{name}: cs-plan failed")
        results[name] = {
            "wall_s": round(time.perf_counter() - begin_s, 1),
            "processor_s": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_rss_bytes": usage.ru_maxrss * 1024,
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
