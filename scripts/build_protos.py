"""Write the descriptor set of every .proto file next to it. Run this after changing one; it needs grpcio-tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOS = (
    "cerebras_tensorflow/system/systems.proto",
    "csrun/csctl/protos/csctl.proto",
    "csrun/csctl/protos/resources.proto",
)


def compiled(proto: str, target: Path) -> Path:
    """Write the descriptor set of a .proto file and its imports below a folder; return its path."""
    path = (target / proto).with_suffix(".binpb")
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [f"-I{ROOT}", "--include_imports", f"--descriptor_set_out={path}"]
    # In a separate process: loaded into one that has TensorFlow, the compiler's copy of Abseil crashes both.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, proto], check=True)
    return path


if __name__ == "__main__":
    for name in PROTOS:
        print(compiled(name, ROOT))
