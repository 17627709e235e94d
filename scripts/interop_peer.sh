#!/usr/bin/env bash
# Makes a virtual environment with the published HDF5 checkpoint readers, for the tests marked interop.
# It is separate from ours because the package pins versions of NumPy and protobuf that conflict with TensorFlow.
# Without those pins (--no-deps) the readers run on today's versions.
set -euo pipefail
folder=${1:?usage: scripts/interop_peer.sh FOLDER [PYTHON]}
"${2:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --no-deps "cerebras_appliance==2.6.0"
"$folder/bin/pip" install --quiet h5py hdf5plugin numpy dill psutil grpcio zstandard "protobuf<6"
