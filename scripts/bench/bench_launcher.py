"""What does the launcher cost? Answer in milliseconds of wall and CPU time, best and median of several rounds.

    python scripts/bench/bench_launcher.py [--runs 15] [--jobs 10000]

CEREBRAS_HOME holds --jobs finished jobs. Each round runs every command once, so that other work on the machine affects
all equally; it affects CPU time least.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.system import database as store
from cerebras_tensorflow.system import jobs

CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "csrun_wse --help": ["csrun.cli:csrun_wse", "--help"],
    "csrun_wse true": ["csrun.cli:csrun_wse", "--executor", "embedded", "true"],
    "csrun_wse --dry-run true": ["csrun.cli:csrun_wse", "--dry-run", "true"],
    "csrun_cpu --help": ["csrun.cli:csrun_cpu", "--help"],
    "cs -c 'config execmode show'": ["csrun.shell.cli:main", "-c", "config execmode show"],
    "csctl get jobs": ["csrun.csctl.cli:main", "get", "jobs"],
    "csctl get jobs -a": ["csrun.csctl.cli:main", "get", "jobs", "-a"],
    "csctl get jobs -a -o json": ["csrun.csctl.cli:main", "get", "jobs", "-a", "-o", "json"],
    "cs-system list": ["csrun.system_cli:main", "list"],
}


def fill(home: Path, count: int) -> None:
    """Add records of finished jobs."""
    first = jobs.submit(home, "cs2-embedded", "pipelined", labels={"model": "gptj"})
    first.finish(jobs.SUCCEEDED)
    names = "system, execution_mode, user, uid, host, pid, phase, description, labels, log, message, "
    names += "is_cancel_requested, created_at, started_at, finished_at"
    with store.transaction(jobs.jobs_file(home)) as connection:
        for number in range(count - 1):
            connection.execute(
                f"INSERT INTO jobs (id, {names}) SELECT ?, {names} FROM jobs WHERE number = ?",
                (f"wsjob-{number:022d}", first.number),
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=10_000)
    arguments = parser.parse_args()
    runs = arguments.runs
    where = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{where}, {runs} rounds, {arguments.jobs} finished jobs; times [ms]")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as home:
        fill(Path(home), arguments.jobs)
        environ = {**os.environ, "CEREBRAS_HOME": home}
        for _ in range(runs):
            for name, words in CASES.items():
                found[name].append(_times_ms(words, environ))
    for name, times in found.items():
        wall, cpu = zip(*times, strict=True)
        print(
            f"{name:<30} wall: best {min(wall):5.0f}  median {statistics.median(wall):5.0f}   "
            f"CPU: best {min(cpu):5.0f}  median {statistics.median(cpu):5.0f}"
        )


def _times_ms(words: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU time of a command [ms]."""
    if ":" in words[0]:
        module, function = words[0].split(":")
        starter = f"import sys; from {module} import {function} as f; sys.exit(f())"
        words = [sys.executable, "-c", starter, *words[1:]]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, env=environ, check=True, capture_output=True)
    wall_ms, after = 1000 * (time.perf_counter() - begin), resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_ms, 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    main()
