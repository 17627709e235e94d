"""Reports in a real browser (Chromium): every chart is drawn, in light and dark and on paper, without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cerebras_tensorflow.perf.html.content import Content, RunRecord
from cerebras_tensorflow.perf.html.page import write_report
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.transformers import BERT_LARGE, GPTJ_6B

pytest.importorskip("plotly", reason="reports need plotly")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium"),
]
CASES = {"pipelined": (BERT_LARGE, 256), "weight_streaming": (GPTJ_6B, 65)}


def browse(page: Path, folder: Path, *options: str) -> str:
    words = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1200,4300",
        "--virtual-time-budget=8000",
    ]
    result = subprocess.run([*words, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    errors = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert errors == []
    return result.stdout


@pytest.mark.parametrize("mode", CASES)
def test_every_chart_is_drawn_in_light_in_dark_and_on_paper(mode: str, tmp_path: Path) -> None:
    shape, batch_size = CASES[mode]
    network = shape.network()
    page = tmp_path / "report.html"
    record = RunRecord((1, 2, 3), (3.0, 2.0, 1.5), (9.0, 10.0, 10.0))
    write_report(page, Content(mode, simulate(network, Workload(mode, batch_size)), network, record=record))
    dom = browse(page, tmp_path, "--dump-dom")
    assert len(re.findall(r'<svg class="main-svg"[^>]*>\s*<defs', dom)) >= 7
    assert dom.count("plotly-graph-div") >= 8 and "barlayer" in dom
    light, dark, paper = tmp_path / "light.png", tmp_path / "dark.png", tmp_path / "paper.pdf"
    browse(page, tmp_path, f"--screenshot={light}")
    browse(page, tmp_path, "--blink-settings=preferredColorScheme=0", f"--screenshot={dark}")
    browse(page, tmp_path, f"--print-to-pdf={paper}")
    assert mean_brightness(light) > 180 > 90 > mean_brightness(dark)
    assert paper.read_bytes().startswith(b"%PDF")


def mean_brightness(picture: Path) -> float:
    image = pytest.importorskip("matplotlib.image", reason="reads the screenshots")
    return float(image.imread(picture)[..., :3].mean() * 255)
