"""Draws the picture of a report for the documents: `draw_report.py [FILE]`, else docs/images/report.png.

It needs plotly and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cerebras_tensorflow.perf.html.content import Content
from cerebras_tensorflow.perf.html.page import write_report
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.transformers import BERT_LARGE

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "report.png"


def main() -> int:
    """Draw the picture. Return 2 if there is no browser."""
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else PICTURE).resolve()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("draw_report: error: needs a browser: apt-get install chromium", file=sys.stderr)
        return 2
    network = BERT_LARGE.network()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(page, Content("BERT-large", simulate(network, Workload("pipelined", 256)), network))
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
        size = [f"--user-data-dir={folder}/profile", "--window-size=1100,1290", f"--screenshot={picture}"]
        subprocess.run([browser, *words, *size, page.as_uri()], check=True, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
