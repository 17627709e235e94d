#!/usr/bin/env bash
# Sets up .venv and runs every check on all CPUs: ruff, mypy, import-linter, and the tests, including those against other
# implementations. Arguments go to pytest (-n 0: one process). Leaves out tests that are slow or need Slurm or a GPU: see
# the markers in pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup_venv.sh test,interop
export PATH="$PWD/.venv/bin:$PATH"
# Many processes import this checkout, so compile each module only once.
unset PYTHONDONTWRITEBYTECODE

check_code() {
    ruff check --quiet . && ruff format --quiet --check . && mypy --no-error-summary &&
        mypy --no-error-summary reference_implementations && { lint-imports > /dev/null || lint-imports; }
}

# The checks of the code use the CPU that the tests leave idle; a failure is shown at once, and again at the end.
check_code || { echo "test.sh: the code has faults; see above" >&2; false; } &
checks=$!
trap 'kill "$checks" 2> /dev/null || true' EXIT

# One process more than there are CPUs, because some tests wait. Work stealing: a few tests take long, and distributing
# whole files would leave one CPU idle at the end.
python -m pytest -q -n "$(($(nproc) + 1))" --dist worksteal --durations 20 \
    -m "not slow and not slurm and not accelerator" "$@" && tests=passed || tests=failed
wait "$checks" && code=passed || code=failed
trap - EXIT
echo "test.sh: tests $tests, checks of the code $code"
[[ $tests == passed && $code == passed ]]
