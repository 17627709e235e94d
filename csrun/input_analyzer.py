"""cs_input_analyzer: measures on this machine how many input workers a model needs.

It runs the given compile or validate command. The command measures its own input pipeline, in one process and with
several numbers of CPUs. The result is compared with the estimated rate at which the simulated system takes samples.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.text import tell
from csrun import cli, interpreters, manual, process, site
from csrun.console import say
from csrun.options import parse

NO_RATE = 3
REPORT_NAME = "compile_report.txt"
CPU_COUNTS = (12, 16, 20)
"""CPUs per worker to try, as in the original. A smaller machine tries 1, half of its CPUs, and all of them."""

ESTIMATE = re.compile(r"^\s*Samples/s:\s*([0-9.eE+]+)", re.M)


@dataclass(frozen=True)
class Recommendation:
    """The sizes of a launch that the measurement recommends; `workers` is None if no estimate is known."""

    samples_per_s: float
    cpus_per_worker: int
    workers: int | None


def cpu_counts(available: int) -> list[int]:
    """Return the numbers of CPUs to try on a machine.

    >>> cpu_counts(32), cpu_counts(2), cpu_counts(8)
    ([12, 16, 20], [1, 2], [1, 4, 8])
    """
    if available >= max(CPU_COUNTS):
        return list(CPU_COUNTS)
    return sorted({1, max(1, available // 2), available})


def cs_input_analyzer(argv: Sequence[str] | None = None) -> int:
    """Analyse the input of a command and return its exit code, or NO_RATE if nothing could be measured."""
    return cli.guarded("cs_input_analyzer", lambda: _analyse(sys.argv[1:] if argv is None else argv))


def recommend(reports: Sequence[Mapping[str, float]], needed_samples_per_s: float | None) -> Recommendation:
    """Return the choice with the fewest CPUs that gives the needed rate; of equal choices, the one with fewest workers.

    Args:
        reports: Measurements of runtime/input_workers/rate.py, one for each number of CPUs.
        needed_samples_per_s: Rate at which the system takes samples. None if no estimate is known; the choice is then
            the number of CPUs with the highest rate per CPU.
    """
    options = []
    for report in reports:
        rate, cpus = report["samples"] / report["wall_s"], int(report["cpus"])
        workers = None if needed_samples_per_s is None else max(1, math.ceil(needed_samples_per_s / rate))
        options.append(Recommendation(rate, cpus, workers))

    def cost(option: Recommendation) -> tuple[float, float]:
        if option.workers is None:
            return -option.samples_per_s / option.cpus_per_worker, option.cpus_per_worker
        return option.workers * option.cpus_per_worker, option.workers

    return min(options, key=cost)


def _analyse(argv: Sequence[str]) -> int:
    here = site.read(env.read().home)
    parsed = parse(argv, manual.ANALYZER_OPTIONS)
    if cli.is_answered("cs_input_analyzer", parsed, lambda: manual.analyzer_help(here)):
        return 0
    command = cli.command_of(parsed, "cs_input_analyzer")
    program = cli.site_program(here, parsed, command)
    if not here.image:
        with interpreters.hinted(parsed):
            interpreters.check_command(command, is_for_here=True)
    nodes = parsed.number("available-nodes") or here.nodes
    print("Starting input performance analysis and resource estimator", flush=True)
    say(f"Running: {shlex.join(command)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.json"
        counts = ",".join(map(str, cpu_counts(len(os.sched_getaffinity(0)))))
        measuring = {env.INPUT_REPORT: str(path), env.INPUT_CPUS: counts}
        environ = {**os.environ, **interpreters.environment(command), **measuring}
        with interpreters.hinted(parsed):
            code = process.run(program if here.image else interpreters.resolved(command), environ).code
        if not path.exists():
            tell(
                "cs_input_analyzer: error: the command did not reach its input pipeline, so there is nothing to "
                "measure. Give a command that compiles or validates the model"
            )
            return code or NO_RATE
        reports = json.loads(path.read_text(encoding="utf-8"))
    if not all(report["batches"] for report in reports):
        tell(
            "cs_input_analyzer: error: the input pipeline ended before it could be measured. It must give a few batches"
        )
        return code or NO_RATE
    needed_samples_per_s = _estimate(command)
    print(_text(reports, recommend(reports, needed_samples_per_s), nodes, needed_samples_per_s))
    print("Finished Analysis")
    return code


def _text(
    reports: Sequence[Mapping[str, float]], best: Recommendation, nodes: int, needed_samples_per_s: float | None
) -> str:
    lines = ["Measured on this machine, one process:"]
    for report in reports:
        rate = report["samples"] / report["wall_s"]
        lines.append(
            f"  with {report['cpus']} CPU(s): {rate:.1f} samples/s "
            f"({report['samples']:.0f} samples in {report['wall_s']:.1f} s, {report['cpu_s']:.1f} s of CPU time)"
        )
    if best.workers is None:
        lines.append(f"No {REPORT_NAME} was found, so the number of workers that the system needs is unknown.")
    else:
        tasks = math.ceil(best.workers / nodes)
        lines += [
            f"Estimated rate of the system (simulated): {needed_samples_per_s:.1f} samples/s",
            f"Input workers for the system's estimated rate (simulated): {best.workers}",
            f"Recommended: --total-nodes {nodes} --tasks-per-node {tasks} --cpus-per-task {best.cpus_per_worker}",
            f"Estimated input rate then: {best.samples_per_s * tasks * nodes:.1f} samples/s on nodes like this one",
        ]
    return "\n".join(lines)


def _estimate(command: Sequence[str]) -> float | None:
    """Return the estimated samples/s of the newest compile report in the command's model_dir; None if there is none."""
    model_dir = "model_dir"
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        if name in ("--model_dir", "--model-dir", "-o"):
            model_dir = value if separator else following
    reports = sorted(Path(work_folder(model_dir)).rglob(REPORT_NAME), key=lambda path: path.stat().st_mtime)
    match = ESTIMATE.search(reports[-1].read_text(encoding="utf-8")) if reports else None
    return None if match is None else float(match.group(1))
