"""Draws the picture of TensorBoard for the documents: `draw_tensorboard.py [FILE]`, else docs/images/tensorboard.png.

It trains fc_mnist for 200 steps, and takes a picture of TensorBoard in Chromium.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "tensorboard.png"
TAGS = "^loss$|accuracy|^avg_samples|^train/lr|input_wait"
START_S = 60.0


def main() -> int:
    """Draw the picture. Return 2 if there is no browser."""
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else PICTURE).resolve()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("draw_tensorboard: error: needs a browser: apt-get install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        _train(folder)
        port = _free_port()
        server = [sys.executable, "-m", "tensorboard.main", "--logdir", f"{folder}/model_dir", "--port", str(port)]
        with subprocess.Popen([*server, "--host", "127.0.0.1"], stderr=subprocess.DEVNULL) as tensorboard:
            try:
                _wait_for(f"http://127.0.0.1:{port}/data/runs")
                page = f"http://127.0.0.1:{port}/#scalars&tagFilter={urllib.request.quote(TAGS)}&_smoothingWeight=0"
                words = [
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--hide-scrollbars",
                    "--window-size=1280,800",
                ]
                words += ["--virtual-time-budget=20000", f"--user-data-dir={folder}/profile", f"--screenshot={picture}"]
                subprocess.run([browser, *words, page], check=True, capture_output=True, timeout=120)
            finally:
                tensorboard.terminate()
    return 0


def _train(folder: str) -> None:
    script = ROOT / "reference_implementations" / "fc_mnist"
    words = ["--params", str(script / "configs" / "params_tiny.yaml"), "--mode", "train_and_eval", "--max_steps", "200"]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(script / "run.py"), *words, "--model_dir", f"{folder}/model_dir"]
    subprocess.run(command, check=True, capture_output=True, env=environ)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if b"eval" in urllib.request.urlopen(address, timeout=5).read():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{address} does not list the runs after {START_S:.0f} s")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
