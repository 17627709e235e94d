#!/usr/bin/env bash
# Makes a virtual environment with the published HDF5 checkpoint readers and writers, for the tests marked interop.
# It is separate from ours because the package pins versions of NumPy and protobuf that conflict with TensorFlow.
# Without those pins (--no-deps) the readers run on today's versions.
# INTEROP_RELEASE chooses a release: 2.6.0 (the default), 2.7.0, 2.7.1, 2.8.0, 2.9.0 or 2.10.0.
set -euo pipefail
folder=${1:?usage: scripts/interop_peer.sh FOLDER [PYTHON]}
python="${2:-python3}"
release="${INTEROP_RELEASE:-2.6.0}"
"$python" -m venv --without-pip "$folder"
install=("$python" "$(dirname "$0")/install_packages.py" --python "$folder/bin/python")
"${install[@]}" --no-deps "cerebras_appliance==$release" "cerebras_pytorch==$release"
"${install[@]}" h5py hdf5plugin numpy dill psutil==7.1.3 grpcio zstandard "protobuf<6" \
    tblib tqdm packaging pyyaml PyJWT "urllib3<2" boto3 tabulate multiprocess
# Take torch from PYTHON's own environment. A .pth file adds that to the end of the path, so our packages come first.
"$python" -c "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])" \
    > "$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/torch_of_another.pth" || true
