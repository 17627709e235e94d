#!/usr/bin/env bash
# Sets up .venv and runs every check: ruff, mypy, import-linter, and the tests, those against other implementations
# included, on all CPUs. Arguments go to pytest (-n 0: one process). What takes minutes (slow), Slurm or a GPU stays out:
# see the markers in pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup_venv.sh test,interop
export PATH="$PWD/.venv/bin:$PATH"
ruff check --quiet .
ruff format --quiet --check .
mypy --no-error-summary
mypy --no-error-summary reference_implementations
lint-imports > /dev/null || lint-imports
# Work stealing: a few tests take a minute, and whole files at a time would leave one CPU idle at the end.
python -m pytest -q -n "$(nproc)" --dist worksteal -m "not slow and not slurm and not accelerator" "$@"
