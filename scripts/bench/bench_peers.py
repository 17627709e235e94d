"""How does training a model that does not fit compare with what people would use instead, under one memory limit?

    python scripts/bench/bench_peers.py --layers 24 --hidden 2048 --heads 16 --limit 8GB --rounds 3

Every framework trains the same GPT-2 shape with Adam in float32 on the same batch, each run in processes of its own
that share one memory limit: a cgroup (version 1 or 2) that this script makes, so it needs root. PyTorch and Keras keep
what does not fit in swap; --swap-file makes a swap file for them and removes it. DeepSpeed (ZeRO-3) keeps parameters
and Adam's state in files; --deepspeed names the Python of an environment that has it, as it needs a build:

    apt-get install libaio-dev; pip install setuptools wheel ninja py-cpuinfo einops hjson msgpack psutil pydantic tqdm
    DS_BUILD_OPS=0 DS_BUILD_AIO=1 DS_BUILD_CPU_ADAM=1 pip install --no-build-isolation --no-deps deepspeed==0.19.8

The frameworks take turns.

A run has three parts: train and save; resume and train one more step; the same steps without a break. Prints for each
framework: time of a step [s] (median and range, without the first step of a process), peak memory of the cgroup
[bytes], bytes that the disk moved, time of the save [s], and whether the resumed step has the loss of the unbroken run.
The peak of the cgroup counts pages of files that the kernel could drop at any time; VmHWM is the resident set alone.
All figures are measured. A part that takes longer than --limit-s is killed and shown as such.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1]))

from peers import limits  # noqa: E402

from cerebras_tensorflow.units import format_bytes, parse_size  # noqa: E402

BUDGET_SHARE = 0.75  # of the limit, as memory_budget of this project: the rest is for pages of files
FRAMEWORKS = ("ours", "deepspeed", "pytorch", "keras")
_LIBAIO = "/usr/lib/x86_64-linux-gnu/libaio.so.1"  # DeepSpeed's extension is not linked to it
SHAPE = {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 50257, "sequence": 128, "batch": 1, "steps": 3}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in SHAPE.items():
        options.add_argument(f"--{name}", type=int, default=value, help="default: %(default)s")
    options.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=["ours", "pytorch", "keras"])
    options.add_argument(
        "--deepspeed", type=Path, help="Python of an environment with DeepSpeed, PyTorch, transformers"
    )
    options.add_argument("--limit", type=parse_size, default=parse_size("8GB"), help="memory of a run, such as 8GB")
    options.add_argument("--rounds", type=int, default=1, help="turns of each framework")
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk to use")
    options.add_argument("--swap-file", type=parse_size, help="size of a swap file to make in the folder, such as 24GB")
    options.add_argument("--limit-s", type=float, default=600.0, help="most seconds for one part of a run")
    options.add_argument("--no-resume", action="store_true", help="train and save only")
    return options


def part(framework: str, what: str, steps: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one part in a process under the limit; return its result, with what the cgroup and the disk counted.

    Args:
        framework: One of FRAMEWORKS.
        what: "save", "resume" or "unbroken".
        steps: Number of steps.
        folder: Where the framework may write.
        options: The command line.
    """
    words = [str(HERE / "peers" / f"{framework}_gpt2.py"), what, str(folder / "state"), str(steps)]
    words += [str(getattr(options, name)) for name in SHAPE if name != "steps"]
    words.append(str(int(BUDGET_SHARE * options.limit)))
    launcher = ["-c", "import sys; from csrun.cli import csrun_wse; sys.exit(csrun_wse())", "python-ws"]
    python = [sys.executable, *(launcher if framework == "ours" else ())]
    if framework == "deepspeed":
        if options.deepspeed is None:
            raise SystemExit("--frameworks deepspeed needs --deepspeed: the Python of an environment that has it")
        python = [
            "env",
            f"LD_PRELOAD={_LIBAIO}",
            f"PATH={options.deepspeed.parent}:{os.environ['PATH']}",
            str(options.deepspeed),
        ]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")]),
        "CEREBRAS_HOME": str(folder / "home"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with limits.memory_limit(options.limit) as group:
        before = limits.disk_bytes(options.folder)
        command = [*limits.inside(group), *python, *words]
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=options.limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            limits.kill(group)
            return {"failure": f"not done after {options.limit_s:.0f} s"}
        moved = limits.disk_bytes(options.folder) - before
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            why = "killed" if done.returncode in (-9, 137) else (done.stderr.strip().splitlines() or ["no output"])[-1]
            return {"failure": f"exit code {done.returncode}: {why:.200}"}
        return {**json.loads(lines[-1]), "peak_bytes": limits.peak_bytes(group), "disk_bytes": moved}


def one_run(framework: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of a framework's parts."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench_peers_") as name:
        parts = {"save": part(framework, "save", options.steps, Path(name), options)}
        if not options.no_resume and "failure" not in parts["save"]:
            parts["resume"] = part(framework, "resume", 1, Path(name), options)
    if "resume" in parts:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench_peers_") as name:
            parts["unbroken"] = part(framework, "unbroken", options.steps + 1, Path(name), options)
    return parts


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one framework over all rounds."""
    failures = [one["failure"] for run in runs for one in run.values() if "failure" in one]
    saves = [run["save"] for run in runs if "failure" not in run["save"]]
    if not saves:
        return {"failures": failures}
    steps = [second for one in saves for second in one["step_s"][1:] or one["step_s"]]
    result: dict[str, Any] = {
        "step_s": {"median": round(statistics.median(steps), 3), "range": [min(steps), max(steps)]},
        "start_s": statistics.median(one["start_s"] for one in saves),
        "save_s": statistics.median(one["save_s"] for one in saves),
        "peak_bytes": max(one["peak_bytes"] for one in saves),
        "vm_hwm_bytes": max(one["vm_hwm_bytes"] for one in saves),
        "disk_bytes": statistics.median(one["disk_bytes"] for one in saves),
        "failures": failures,
    }
    pairs = [(run["resume"], run["unbroken"]) for run in runs if {"resume", "unbroken"} <= run.keys()]
    result["is_resume_exact"] = [
        a["losses"][-1] == b["losses"][-1] for a, b in pairs if "failure" not in a and "failure" not in b
    ]
    return result


def main() -> None:
    """Run the benchmark; print a line for each framework and one JSON object."""
    options = parser().parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.frameworks}
    with limits.swap(options.folder, options.swap_file):
        for number in range(options.rounds):
            for framework in options.frameworks:
                runs[framework].append(one_run(framework, options))
                print(
                    f"round {number + 1}: {framework}: {json.dumps(runs[framework][-1])}", file=sys.stderr, flush=True
                )
    results = {name: summary(each) for name, each in runs.items()}
    for name, figures in results.items():
        print(f"{name:8} {_line(figures)}")
    about = {"machine": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg(), "versions": versions()}
    print(json.dumps({"options": vars(options), **about, "results": results}, default=str))


def _line(figures: dict[str, Any]) -> str:
    """Return the figures of one framework as a line of text."""
    if "step_s" not in figures:
        return "; ".join(figures["failures"])
    peak, disk = format_bytes(figures["peak_bytes"]), format_bytes(int(figures["disk_bytes"]))
    exact = figures["is_resume_exact"]
    how = f"{sum(exact)} of {len(exact)} resumed steps exact" if exact else "resume not tried"
    return (
        f"{figures['step_s']['median']:8.2f} s a step, peak {peak}, disk {disk}, save {figures['save_s']:.1f} s, {how}"
    )


def versions() -> dict[str, str]:
    """Return the versions of the packages that are compared."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("cerebras_tensorflow", "tensorflow", "torch", "transformers", "keras"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    main()
