"""The compiled descriptor sets beside the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import build_protos  # noqa: E402


def test_every_proto_file_is_in_the_list() -> None:
    packages = (ROOT / "cerebras_tensorflow", ROOT / "csrun")
    protos = {str(path.relative_to(ROOT)) for package in packages for path in package.rglob("*.proto")}
    assert protos == set(build_protos.PROTOS)


@pytest.mark.parametrize("proto", build_protos.PROTOS)
def test_descriptor_sets_match_their_proto_files(proto: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    expected = FileDescriptorSet.FromString(build_protos.compiled(proto, tmp_path).read_bytes())
    kept = FileDescriptorSet.FromString((ROOT / proto).with_suffix(".binpb").read_bytes())
    assert kept == expected, "run scripts/build_protos.py"


def test_protocols_load_where_the_compiler_is_not_installed() -> None:
    script = (
        "import sys; sys.modules['grpc_tools'] = None\n"
        "import subprocess; subprocess.run = subprocess.Popen = None\n"
        "from cerebras_tensorflow.system import protocol\n"
        f"for proto in {build_protos.PROTOS!r}: protocol.load(proto)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
