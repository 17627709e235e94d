"""What does the launcher cost? Answer in milliseconds of wall time, best and median of several runs.

python scripts/bench/bench_launcher.py [--runs 15]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "csrun_wse --help": ["csrun.cli:csrun_wse", "--help"],
    "csrun_wse true": ["csrun.cli:csrun_wse", "--executor", "embedded", "true"],
    "csrun_wse --dry-run true": ["csrun.cli:csrun_wse", "--dry-run", "true"],
    "csrun_cpu --help": ["csrun.cli:csrun_cpu", "--help"],
    "cs -c 'config execmode show'": ["csrun.shell.cli:main", "-c", "config execmode show"],
    "csctl get jobs": ["csrun.jobs.cli:main", "get", "jobs"],
    "cs-system list": ["csrun.system_cli:main", "list"],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {runs} runs; wall time [ms]")
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "CEREBRAS_HOME": home}
        for name, words in CASES.items():
            if ":" in words[0]:
                module, function = words[0].split(":")
                starter = f"import sys; from {module} import {function} as f; sys.exit(f())"
                words = [sys.executable, "-c", starter, *words[1:]]
            times_ms = []
            for _ in range(runs):
                begin = time.perf_counter()
                subprocess.run(words, env=environ, check=True, capture_output=True)
                times_ms.append(1000 * (time.perf_counter() - begin))
            print(f"{name:<30} best {min(times_ms):6.0f}   median {statistics.median(times_ms):6.0f}")


if __name__ == "__main__":
    main()
