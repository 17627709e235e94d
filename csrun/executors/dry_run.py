"""The plan on paper: the exact srun line and the roles, and nothing is started."""

from __future__ import annotations

import shlex

from csrun.plan import LaunchPlan, described, srun_options


def report(plan: LaunchPlan, program: tuple[str, ...]) -> str:
    """Return what a launch would do.

    Args:
        plan: The launch.
        program: What each task executes: the command, inside a container if the site has one.
    """
    tasks = f"{len(plan.tasks)} tasks" if len(plan.tasks) > 1 else "1 task"
    return f"Launching: {shlex.join((*srun_options(plan), *program))}\n{tasks}:\n{described(plan)}"
