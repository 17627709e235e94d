#!/usr/bin/env bash
# Runs the tests of compatibility, of the estimator and of equal bits on another TensorFlow (2.16 to 2.21), in a separate
# virtual environment, .venv-tf<VERSION>. CI tests only the newest TensorFlow.
# Usage: scripts/test_on_tensorflow.sh 2.16 [pytest arguments]. VENV names another folder for the environment.
# On 2.15 the tests run against TensorFlow's own tf.estimator: each failure is a difference to examine.
set -euo pipefail
cd "$(dirname "$0")/.."

version="${1:?usage: scripts/test_on_tensorflow.sh 2.16 [pytest arguments]}"
shift
venv="${VENV:-.venv-tf$version}"
stamp="$venv/.installed_requirements"
wanted="$version $(sha256sum pyproject.toml)"
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
if [[ ! -f $stamp || "$(<"$stamp")" != "$wanted" ]]; then
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
    if [[ $version == 2.15 ]]; then
        "${pip[@]}" "tensorflow-cpu==2.15.*" "numpy<2" pandas pytest hypothesis
    else
        # The dependencies in pyproject.toml, with this TensorFlow instead of the newest.
        mapfile -t needed < <("$venv/bin/python" - <<'PYTHON'
from pathlib import Path
try:
    import tomllib
except ModuleNotFoundError:
    from pip._vendor import tomli as tomllib
settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
install = [name for name in settings["project"]["dependencies"] if not name.startswith(("tensorflow>", "tf_keras>"))]
print("\n".join([*settings["build-system"]["requires"], *install]))
PYTHON
        )
        "${pip[@]}" "tensorflow==$version.*" "tf_keras==$version.*" "${needed[@]}" pandas pytest hypothesis
    fi
    printf '%s' "$wanted" > "$stamp"
fi
suites=(tests/compat)
[[ $version == 2.15 ]] && suites+=(--ignore tests/compat/test_scripts.py --ignore tests/compat/test_zoo.py -W ignore)
[[ $version == 2.15 ]] || suites+=(tests/unit/compat tests/unit/estimator tests/numerics)
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "${suites[@]}" "$@"
