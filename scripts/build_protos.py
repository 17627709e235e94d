"""Write the descriptor set of every .proto file beside it. Run it after changing one; needs grpcio-tools."""

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
    """Return the file, below a folder, that holds the descriptor set of a .proto file and of all that it imports."""
    path = (target / proto).with_suffix(".binpb")
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [f"-I{ROOT}", "--include_imports", f"--descriptor_set_out={path}"]
    # In a process of its own: loaded into one that has TensorFlow, the compiler's copy of Abseil crashes both.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, proto], check=True)
    return path


if __name__ == "__main__":
    for name in PROTOS:
        print(compiled(name, ROOT))
