#!/usr/bin/env bash
# Sets up .venv and runs every check on all CPUs: ruff, mypy, import-linter, and the tests, including those against other
# implementations. Arguments go to pytest (-n 0: one process). Leaves out tests that are slow or need Slurm or a GPU: see
# the markers in pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup_venv.sh test,interop
export PATH="$PWD/.venv/bin:$PATH"
ruff check --quiet .
ruff format --quiet --check .
mypy --no-error-summary
mypy --no-error-summary reference_implementations
lint-imports > /dev/null || lint-imports
# Work stealing: a few tests take a minute. Distributing whole files would leave one CPU idle at the end.
python -m pytest -q -n "$(nproc)" --dist worksteal --durations 20 -m "not slow and not slurm and not accelerator" "$@"
