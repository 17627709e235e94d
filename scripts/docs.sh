#!/usr/bin/env bash
# Builds the documentation site into docs/_build/html; a warning is an error. Options go to sphinx-build.
# Usage: scripts/docs.sh [SPHINX-OPTION ...]
set -euo pipefail
cd "$(dirname "$0")/.."

# Skip the setup if the extra is installed already: CI installs all extras at once.
.venv/bin/python -c 'import sphinx_book_theme, myst_nb, matplotlib' 2>/dev/null || scripts/setup_venv.sh docs

# Draw the picture of a training step with this checkout's compiler.
.venv/bin/python scripts/draw_timeline.py
rm -rf docs/_build docs/api/generated
.venv/bin/python -m sphinx -W --keep-going -q -b html "$@" docs docs/_build/html
# Draw the pictures of a report and of TensorBoard if there is a browser and plotly; otherwise the site has those of the
# checkout. They show measured times, so no two drawings are equal: the checkout keeps its own.
if command -v chromium chromium-browser >/dev/null && .venv/bin/python -c 'import plotly' 2>/dev/null; then
    .venv/bin/python scripts/draw_report.py docs/_build/html/_images/report.png
    .venv/bin/python scripts/draw_tensorboard.py docs/_build/html/_images/tensorboard.png
fi
echo "The site is in docs/_build/html/index.html"
