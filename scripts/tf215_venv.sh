#!/usr/bin/env bash
# Makes a virtual environment with TensorFlow 2.15, the last release with tf.estimator. The tests in tests/compat/differential
# compare our Estimator with it: CEREBRAS_TF215=FOLDER/bin/python pytest -m interop tests/compat/differential
set -euo pipefail
folder=${1:?usage: scripts/tf215_venv.sh FOLDER [PYTHON 3.9 to 3.11]}
"${2:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "tensorflow-cpu==2.15.*" "numpy<2" pandas
