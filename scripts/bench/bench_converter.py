"""How much memory does convert_checkpoint take at its peak, compared with its bound [MB]?

    python scripts/bench/bench_converter.py [--gigabytes 4] [--dir FOLDER]

Makes a GPT-J of that size in float32, in shards of safetensors, and converts it along each path. The bound is two of
the largest tensors plus 200 MB. The peak is VmHWM of the converter's process; mapped pages of files count too.
The folder needs about three times the size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.saver.interface import TensorEntry
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter

HIDDEN, HEADS, VOCABULARY, SHARDS = 2048, 16, 50400, 4
ROOT = Path(__file__).resolve().parents[2]
MB = 1e6
# Runs the entry point, then prints the peak.
STARTER = """
import sys
from cerebras_tensorflow.converter.cli import main
status = main(sys.argv[1:])
with open("/proc/self/status") as file:
    peak_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
print(f"peak_bytes {peak_kib * 1024}")
sys.exit(status)
"""


def shapes(num_layers: int) -> dict[str, list[int]]:
    """Return the tensors of a GPT-J in Hugging Face's names."""
    found = {"transformer.wte.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    found |= {"lm_head.bias": [VOCABULARY], "transformer.ln_f.weight": [HIDDEN], "transformer.ln_f.bias": [HIDDEN]}
    for i in range(num_layers):
        block = f"transformer.h.{i}"
        found |= {f"{block}.attn.{part}_proj.weight": [HIDDEN, HIDDEN] for part in ("q", "k", "v", "out")}
        found |= {f"{block}.ln_1.weight": [HIDDEN], f"{block}.ln_1.bias": [HIDDEN]}
        found |= {f"{block}.mlp.fc_in.weight": [4 * HIDDEN, HIDDEN], f"{block}.mlp.fc_in.bias": [4 * HIDDEN]}
        found |= {f"{block}.mlp.fc_out.weight": [HIDDEN, 4 * HIDDEN], f"{block}.mlp.fc_out.bias": [HIDDEN]}
    return found


def make(folder: Path, num_bytes: float) -> tuple[Path, int, int]:
    """Write the model; return its index, its size [B] and the largest tensor's [B]."""
    layer_bytes = 4 * 12 * HIDDEN**2
    num_layers = max(1, round((num_bytes - 8 * VOCABULARY * HIDDEN) / layer_bytes))
    tensors = shapes(num_layers)
    sizes = {name: 4 * int(np.prod(shape)) for name, shape in tensors.items()}
    rng = np.random.default_rng(1)
    weight_map = {}
    for shard in range(SHARDS):
        names = list(tensors)[shard::SHARDS]
        path = folder / f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        entries = {name: TensorEntry(np.dtype(np.float32), tuple(tensors[name]), sizes[name]) for name in names}
        with SafetensorsWriter(path, entries) as writer:
            for name in names:
                writer.add(name, rng.random(tensors[name], np.float32))
        weight_map |= dict.fromkeys(names, path.name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_head": HEADS, "n_layer": num_layers, "n_positions": 2048}
    config |= {"rotary": True, "rotary_dim": 64, "n_inner": None, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    return index, sum(sizes.values()), max(sizes.values())


def convert(source: str, target: str, checkpoint: Path, config: Path, folder: Path, *flags: str) -> tuple[float, int]:
    """Run the converter; return wall time [s] and peak memory [B]."""
    words = ["convert", "--model", "gptj", "--src-fmt", source, "--tgt-fmt", target, "--config", str(config)]
    words += ["--output-dir", str(folder), *flags, str(checkpoint)]
    begin = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", STARTER, *words], capture_output=True, text=True, cwd=ROOT)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    peak_bytes = int(result.stdout.rpartition("peak_bytes ")[2])
    return time.perf_counter() - begin, peak_bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument(
        "--dir", default=None, help="folder for the checkpoints (default: the system's temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name).resolve()
        index, num_bytes, largest_bytes = make(folder, options.gigabytes * 1e9)
        bound_bytes = 2 * largest_bytes + 200e6
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; GPT-J of "
            f"{num_bytes / 1e9:.2f} GB, largest tensor {largest_bytes / MB:.0f} MB, bound {bound_bytes / MB:.0f} MB"
        )
        mdl, cs_config = folder / "model_to_cs-1.8.mdl", folder / "config_to_cs-1.8.yaml"
        ckpt, tf_config = folder / "model_to_tf.ckpt", folder / "config_to_tf.yaml"
        paths = [
            ("hf shards -> cs-1.8, torch file", "hf", "cs-1.8", index, folder / "config.json", ("--verify",)),
            ("cs-1.8 torch file -> hf, safetensors", "cs-1.8", "hf", mdl, cs_config, ("--export-safetensors",)),
            ("hf shards -> cs-1.8, HDF5", "hf", "cs-1.8", index, folder / "config.json", ("--export-h5-checkpoint",)),
            ("cs-1.8 HDF5 -> hf, torch file", "cs-1.8", "hf", mdl, cs_config, ()),
            ("hf shards -> tf", "hf", "tf", index, folder / "config.json", ()),
            ("tf -> hf, torch file", "tf", "hf", ckpt, tf_config, ()),
        ]
        for words, source, target, checkpoint, config, flags in paths:
            wall_s, peak_bytes = convert(source, target, checkpoint, config, folder, *flags)
            verdict = "within" if peak_bytes <= bound_bytes else "OVER"
            print(f"{words:<38} peak {peak_bytes / MB:6.0f} MB, {verdict} the bound; {wall_s:6.1f} s")
            for result in (*folder.glob("*_to_hf.*"),):
                result.unlink()


if __name__ == "__main__":
    main()
