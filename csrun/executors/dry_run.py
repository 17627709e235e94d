"""A dry run: prints what would be started, the exact srun line and the roles. Nothing is started."""

from __future__ import annotations

import shlex

from csrun.executors.interface import Executor
from csrun.plan import LaunchPlan, described, srun_options


def report(plan: LaunchPlan, program: tuple[str, ...], executor: Executor) -> str:
    """Return what a launch would do. If it would not use srun, the srun line for a cluster follows.

    Args:
        plan: The launch.
        program: The command that each task executes, inside a container if the site has one.
        executor: The executor that would run the plan.
    """
    tasks = f"{len(plan.tasks)} tasks" if len(plan.tasks) > 1 else "1 task"
    srun = shlex.join((*srun_options(plan), *program))
    lines = [f"Launching: {shlex.join(executor.command_line(plan))}"]
    here = executor.started(plan)
    if here:
        lines += [here, "On a Slurm cluster (--executor slurm) the same options would launch:", srun]
    return "\n".join([*lines, f"{tasks}:", described(plan)])
