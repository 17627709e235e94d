#!/usr/bin/env bash
# Sets up .venv and trains a GPT-J of 3.3 million parameters on Paradise Lost, in weight-streaming mode, on the embedded
# simulated CS-2. The text is in reference_implementations/data. Options go to run.py: scripts/quickstart.sh --max_steps 200
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup_venv.sh
export PATH="$PWD/.venv/bin:$PATH"
cd reference_implementations/gptj
exec csrun_wse --total-nodes 3 --tasks-per-node 2 --cpus-per-task 1 --single-task-nodes 2 --cyclic \
    python-ws run.py --model_dir model_dir --params configs/params_tiny.yaml --mode train --max_steps 100 "$@"
