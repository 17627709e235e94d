"""Runs a plan on a simulated system: submits a job, waits in the queue, calls the executor, records the end."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cerebras_tensorflow.config import env
from cerebras_tensorflow.system import jobs, registry
from cerebras_tensorflow.system.database import LOCKED, REFUSED, RecordsError
from cerebras_tensorflow.system.state import check_admits
from cerebras_tensorflow.text import did_you_mean, tell
from csrun import interpreters, process
from csrun.console import say
from csrun.executors.embedded import Embedded
from csrun.executors.interface import RESUME, Executor, Launch
from csrun.options import Parsed, UsageError
from csrun.plan import LaunchPlan
from csrun.site import EXECUTORS, Site


class Hints(NamedTuple):
    """What the command's own arguments say about the system (--cs_ip) and the job (--job_labels)."""

    cs_ip: str | None
    labels: dict[str, str]


def launch(plan: LaunchPlan, here: Site, parsed: Parsed, program: tuple[str, ...]) -> int:
    """Run a plan to its end and return its exit code.

    Raises:
        SystemNotFoundError, SystemStateError, ExecModeError: Before anything starts, if the system cannot take the run.
    """
    executor = executor_of(here, parsed, program)
    hints = command_hints(plan.command)
    labels = {**hints.labels, **parse_labels(parsed.text("job-labels", "").split(","))}
    system = registry.find(hints.cs_ip)
    # The mode of a command such as a shell script is unknown until it asks for the system.
    mode = interpreters.execution_mode(plan.command) or system.execution_mode
    home = env.read().home
    admit: Callable[[], bool]
    if isinstance(system, registry.LocalSystem):
        check_admits(system.state, mode)
        queue_name = system.name
        admit = partial(system.admit, mode)
    else:
        # Another host serves this system, and the run itself holds it. Here launches only queue behind each other.
        queue_name, admit = system.address, lambda: True
    if not here.image:
        with interpreters.hinted(parsed):
            interpreters.check_command(plan.command, isinstance(executor, Embedded))
            interpreters.check_holds_no_prompt(plan.command)
    say(f"Launching: {shlex.join(executor.command_line(plan))}")
    job = _submitted(home, queue_name, mode, shlex.join(plan.command), labels)
    phase, message = jobs.FAILED, "the launcher was interrupted"
    try:
        tell(f"csrun: job {job.number} is {job.id} on {system.name}, log {job.record.log}")
        with interpreters.hinted(parsed):
            ended = executor.run(Launch(plan, job, lambda on_wait: job.wait_for_wafer(admit, on_wait), tell))
        phase, message = _verdict(ended.code)
        if phase == jobs.FAILED and ended.signal:
            tell(f"csrun: {_how_killed(ended.signal)} on {job.record.host}; the log is {job.record.log}. {RESUME}")
        return ended.code
    except process.CommandError as exc:
        message = str(exc)
        raise
    except (KeyboardInterrupt, SystemExit):
        phase = jobs.CANCELLED
        raise
    finally:
        try:
            job.finish(phase, message)
        except RecordsError as exc:
            tell(f"csrun: warning: the end of job {job.number}, {phase}, is not recorded: {exc}")


def _submitted(
    home: Path, queue_name: str, mode: str, description: str, labels: dict[str, str]
) -> jobs.LiveJob | jobs.UnrecordedJob:
    """Return a queued job, or one without a record if the disk is full or fails."""
    try:
        return jobs.submit(home, queue_name, mode, description, labels)
    except RecordsError as exc:
        if exc.kind in (REFUSED, LOCKED):
            raise
        job = jobs.unrecorded(queue_name, mode, description, labels)
        tell(
            f"csrun: warning: this job cannot be recorded: {exc}. It runs without waiting for other jobs; "
            "csctl does not show it"
        )
        return job


def chosen_executor(here: Site, parsed: Parsed) -> str:
    """Return the name of the executor that the options and the site ask for."""
    name = parsed.text("executor", here.executor)
    if name not in EXECUTORS:
        raise UsageError(
            f"ERROR: unknown executor {name!r}: expected one of {', '.join(EXECUTORS)}" + did_you_mean(name, EXECUTORS)
        )
    if name == "auto":
        from csrun.executors import slurm  # slow; only needed for `auto`

        return "slurm" if slurm.answers() else "embedded"
    return name


def executor_of(here: Site, parsed: Parsed, program: tuple[str, ...]) -> Executor:
    """Return the executor that the options and the site ask for."""
    return make_executor(chosen_executor(here, parsed), program, here, parsed)


def make_executor(name: str, program: tuple[str, ...], here: Site, parsed: Parsed) -> Executor:
    """Return an executor by its name, with that executor's own options."""
    tolerates = parsed.truth("tolerate-node-failure", False)
    if name == "slurm":
        from csrun.executors.slurm import Slurm

        return Slurm(program, tolerates)
    if tolerates:
        tell("csrun: warning: --tolerate-node-failure has no effect on one machine")
    most = parsed.number("local-tasks")
    # An explicit count overrides the limit.
    asked = [parsed.number(option) or 0 for option in ("input-workers", "weight-servers")]
    return Embedded(max(here.local_tasks, *asked) if most is None else most)


def command_hints(command: Sequence[str]) -> Hints:
    """Return the address and the labels in a command's arguments.

    >>> command_hints(["python-ws", "run.py", "--cs_ip=10.0.0.1", "--job_labels", "model=gptj", "run=1", "-m", "train"])
    Hints(cs_ip='10.0.0.1', labels={'model': 'gptj', 'run': '1'})
    """
    cs_ip: str | None = None
    labels: list[str] = []
    words = list(command)
    while words:
        name, separator, value = words.pop(0).replace("-", "_", 4).partition("=")
        if name == "__cs_ip":
            cs_ip = value if separator else (words.pop(0) if words else None)
        elif name == "__job_labels":
            if separator:
                labels.append(value)
            while words and "=" in words[0] and not words[0].startswith("-"):
                labels.append(words.pop(0))
    return Hints(cs_ip, parse_labels(labels))


def parse_labels(words: Sequence[str]) -> dict[str, str]:
    """Return labels from words KEY=VALUE.

    Raises:
        UsageError: If a word is not of that form.
    """
    labels = {}
    for word in filter(None, words):
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise UsageError(f"ERROR: a label has the form KEY=VALUE, not {word!r}")
        labels[key] = value
    return labels


def _verdict(code: int) -> tuple[str, str]:
    if code == 0:
        return jobs.SUCCEEDED, ""
    # Ctrl-C at the terminal and `kill` of the chief do not pass through this process, and a run that saves first ends
    # by itself. So only the exit code shows that a signal stopped the run.
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        return jobs.CANCELLED, f"exit code {code}: stopped by {signal.Signals(code - 128).name}"
    return jobs.FAILED, f"exit code {code}"


def _how_killed(number: int) -> str:
    names = {item.value: item.name for item in signal.Signals}
    reason = " (somebody killed it, or its host was out of memory)" if number == signal.SIGKILL else ""
    return f"the chief was ended by {names.get(number, f'signal {number}')}{reason}"
