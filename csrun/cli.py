"""The launchers csrun_wse and csrun_cpu: they turn a command line into a plan, run it, and return an exit code."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from cerebras_tensorflow import command_line
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.text import tell
from cerebras_tensorflow.version import __version__
from csrun import interpreters, manual, process, site
from csrun.console import say
from csrun.options import Parsed, UsageError, parse
from csrun.plan import Request, make_plan

USAGE_ERROR = 1


def csrun_wse(argv: Sequence[str] | None = None) -> int:
    """Run a command on a CS system and return its exit code."""
    return guarded("csrun_wse", lambda: _csrun_wse(sys.argv[1:] if argv is None else argv))


def csrun_cpu(argv: Sequence[str] | None = None) -> int:
    """Run a command on CPUs only and return its exit code."""
    return guarded("csrun_cpu", lambda: _csrun_cpu(sys.argv[1:] if argv is None else argv))


def _csrun_wse(argv: Sequence[str]) -> int:
    here = site.read(env.read().home)
    parsed = parse(argv, manual.WSE_OPTIONS)
    if is_answered("csrun_wse", parsed, lambda: manual.wse_help(here)):
        return 0
    plan = make_plan(_request(parsed, here), command_of(parsed, "csrun_wse"))
    program = site_program(here, parsed, plan.command)
    if (num_csx := parsed.number("num-csx")) is not None:
        os.environ[env.NUM_CSX] = str(num_csx)
    from csrun import launching

    if parsed.truth("dry-run", False):
        from csrun.executors import dry_run

        say(dry_run.report(plan, program, launching.executor_of(here, parsed, program)))
        return 0
    return launching.launch(plan, here, parsed, program)


def _csrun_cpu(argv: Sequence[str]) -> int:
    here = site.read(env.read().home)
    parsed = parse(argv, manual.CPU_OPTIONS)
    if is_answered("csrun_cpu", parsed, lambda: manual.cpu_help(here)):
        return 0
    for name, value in manual.site_values(here).items():
        if parsed.truth(name, False):
            print(value)
            return 0
    command = command_of(parsed, "csrun_cpu")
    program = site_program(here, parsed, command)
    from csrun import launching

    is_on_slurm = parsed.truth("alloc-node", True) and launching.chosen_executor(here, parsed) == "slurm"
    words = (*_srun_cpu(here, parsed), *program) if is_on_slurm else program
    if parsed.truth("logging", True):
        say(f"Running: {shlex.join(words if is_on_slurm or here.image else command)}")
    if parsed.truth("dry-run", False):
        return 0
    environ = {**os.environ, **interpreters.environment(command)}
    with interpreters.hinted(parsed):
        if not here.image:
            interpreters.check_command(command, not is_on_slurm)
        return process.run(words if here.image or is_on_slurm else interpreters.resolved(command), environ).code


def _srun_cpu(here: site.Site, parsed: Parsed) -> tuple[str, ...]:
    exclude = here.gres_node if parsed.truth("exclude-gres", True) else ""
    return ("srun", "--pty", "--nodes=1", *([f"--exclude={exclude}"] if exclude else []), "--exclusive")


def site_program(here: site.Site, parsed: Parsed, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command as a task executes it: inside the site's container, if it has one.

    Raises:
        UsageError: If a folder cannot be mounted there.
    """
    if not here.image:
        return command
    extra = site.split_folders(parsed.text("mount-dirs", ""))
    folders = dict.fromkeys((str(Path.cwd()), *here.mount_dirs, *extra))
    if "," in str(Path.cwd()) or ":" in str(Path.cwd()):
        raise UsageError(
            f"ERROR: {str(Path.cwd())!r} cannot be mounted in the site's container: singularity reads a comma or colon "
            "in a name as a separator. Use a folder without one"
        )
    return ("singularity", "exec", "-B", ",".join(folders), here.image, *command)


def _request(parsed: Parsed, here: site.Site) -> Request:
    """Return the sizes of a launch: from the options, else from the site's defaults."""
    tasks = parsed.number("tasks-per-node")
    cpus = parsed.number("cpus-per-task")
    workers, servers = parsed.number("input-workers"), parsed.number("weight-servers")
    if workers is not None or servers is not None:
        others = [name for name in ("total-nodes", "tasks-per-node", "single-task-nodes") if name in parsed.values]
        if others:
            raise UsageError(
                f"ERROR: --input-workers and --weight-servers are for a launch on one node. With --{others[0]}, rank 0 "
                "is the chief, the other single-task nodes are weight servers, and all other tasks are input workers"
            )
        size = 1 + (servers or 0) + (workers or 0)
        return Request(1, size, cpus, gres=here.gres, weight_servers=servers or 0)
    node_cpus = here.tasks_per_node * here.cpus_per_task
    request = Request(
        total_nodes=parsed.number("total-nodes") or here.nodes,
        tasks_per_node=tasks or here.tasks_per_node,
        cpus_per_task=cpus or here.cpus_per_task,
        single_task_nodes=parsed.number("single-task-nodes") or 0,
        is_cyclic=parsed.truth("cyclic", False),
        gres=here.gres,
    )
    if tasks is None and cpus is not None:
        return replace(request, tasks_per_node=max(1, node_cpus // cpus))
    if tasks is not None and cpus is None and tasks * here.cpus_per_task > node_cpus:
        tell(f"INFO: {tasks} tasks of {here.cpus_per_task} CPUs do not fit on a node; Slurm chooses the CPUs of a task")
        return replace(request, cpus_per_task=None)
    return request


def is_answered(program: str, parsed: Parsed, help_text: Callable[[], str]) -> bool:
    """Print the help or the version and return True if the line asks for it; apply --debug."""
    if parsed.truth("debug", False):
        env.set_debug()
    if parsed.wants_help:
        print(help_text())
    elif parsed.truth("version", False):
        print(f"{program} {__version__}")
    else:
        return False
    return True


def command_of(parsed: Parsed, program: str) -> tuple[str, ...]:
    """Return the command of a parsed line; print its warnings.

    Raises:
        UsageError: If there is none.
    """
    for warning in parsed.warnings:
        tell(warning)
    if not parsed.command:
        raise UsageError(f"ERROR: there is no command to run; see `{program} --help`")
    return parsed.command


def guarded(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of a launcher. An error prints one line; a signal gives the code that a shell would give."""
    signal.signal(signal.SIGTERM, _terminated)

    def expected() -> int:
        try:
            return run()
        except process.CommandError as exc:
            command_line.show(exc, command_line.error_line(program, exc))
            return exc.exit_code
        except UsageError as exc:
            command_line.show(exc, str(exc))
            return exc.exit_code
        except (CerebrasError, ValueError) as exc:
            command_line.show(exc, command_line.error_line(program, exc))
            return USAGE_ERROR

    return command_line.exit_code(program, expected)


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
