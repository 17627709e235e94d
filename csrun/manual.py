"""The options of the launchers, and their help texts with this site's values."""

from __future__ import annotations

from collections.abc import Sequence

from csrun.options import Option
from csrun.site import Site

MOUNT_DIRS = Option("mount-dirs", "text", "Folders to mount in a container, besides the site's", "directories to mount")
DRY_RUN = Option("dry-run", "flag", "Show what would be started, and start nothing")
COMMON = (
    Option("debug", "flag", "Show the traceback of an error"),
    Option("version", "flag", "Print the release and exit"),
)
EXECUTOR = Option("executor", "text", "auto, embedded (this machine) or slurm", "auto, embedded or slurm")

WSE_OPTIONS = (
    Option("num-csx", "number", "CS systems that train together (overrides num_csx of the run)", "number of systems"),
    Option("total-nodes", "number", "Nodes of the launch", "number of nodes", aliases=("nodes",)),
    Option("tasks-per-node", "number", "Tasks on each node", "number of tasks"),
    Option("cpus-per-task", "number", "CPUs for each task", "number of CPUs"),
    Option("single-task-nodes", "number", "Number of nodes that run only one task", "number of nodes", minimum=0),
    Option("cyclic", "flag", "Distribute tasks over the nodes in turn, instead of filling one node after the other"),
    MOUNT_DIRS,
    Option(
        "input-workers",
        "number",
        "Replaces the sizes above: one node with the chief, N input workers, and the weight servers below",
        "number of input workers",
        minimum=0,
    ),
    Option(
        "weight-servers",
        "number",
        "Also start N weight servers, tasks that can hold the weights; the launch is then on one node",
        "number of weight servers",
        minimum=0,
    ),
    Option(
        "local-tasks",
        "number",
        "Embedded executor: start at most N input workers and N weight servers; 0: the chief plays all roles",
        "number of processes",
        minimum=0,
    ),
    Option(
        "tolerate-node-failure",
        "flag",
        "Under Slurm: start again when a node is lost, at most 3 times; the run resumes from its latest checkpoint",
    ),
    Option("job-labels", "text", "Labels of the job, KEY=VALUE,...", "KEY=VALUE,..."),
    EXECUTOR,
    DRY_RUN,
    *COMMON,
)

SITE_NAMES = ("def-nodes", "def-tasks", "def-cpus", "singularity", "def-mount-dirs", "def-gres", "def-gres-node")

CPU_OPTIONS = (
    Option("alloc-node", "truth", "Whether to take a whole node", "True or False"),
    MOUNT_DIRS,
    Option("logging", "truth", "Whether to print the line `Running: ...`", "True or False"),
    Option("exclude-gres", "truth", "Whether to keep off the CS system's node", "True or False"),
    EXECUTOR,
    DRY_RUN,
    *(Option(name, "flag", "Print the site's value and exit") for name in SITE_NAMES),
    *COMMON,
)


ANALYZER_OPTIONS = (
    Option("available-nodes", "number", "Most nodes that a launch may use", "number of nodes"),
    MOUNT_DIRS,
    *COMMON,
)


def analyzer_help(here: Site) -> str:
    """Return the help of cs_input_analyzer."""
    defaults = {"available-nodes": str(here.nodes), "mount-dirs": ",".join(here.mount_dirs) or "none"}
    return f"""usage: cs_input_analyzer [OPTION]... COMMAND [ARGUMENT]...

Run COMMAND, which compiles or validates a model. Measure its input pipeline on this machine, and recommend the number
of input workers for the estimated rate of the simulated system.

Options, --name VALUE or --name=VALUE, with hyphens or underscores; COMMAND begins at the first other word:
{_table(ANALYZER_OPTIONS, defaults)}
      --help                  This text

Example:
  cs_input_analyzer --available-nodes 5 python run.py --params configs/params.yaml --mode train --compile_only"""


def wse_help(here: Site) -> str:
    """Return the help of csrun_wse."""
    defaults = {
        "total-nodes": str(here.nodes),
        "tasks-per-node": str(here.tasks_per_node),
        "cpus-per-task": str(here.cpus_per_task),
        "single-task-nodes": "0",
        "local-tasks": str(here.local_tasks),
        "mount-dirs": ",".join(here.mount_dirs) or "none",
        "executor": here.executor,
    }
    return f"""usage: csrun_wse [OPTION]... COMMAND [ARGUMENT]...

Run COMMAND on a CS system: wait for the system, start the tasks, pass signals on, return the exit code.

Options, --name VALUE or --name=VALUE, with hyphens or underscores; COMMAND begins at the first other word:
{_table(WSE_OPTIONS, defaults)}
      --help                  This text

Defaults come from {here.source}.

COMMAND begins with
  python      TensorFlow, pipelined: the whole model on the wafer
  python-ws   TensorFlow, weight streaming: one layer at a time, for models of any size
  python-pt   PyTorch
or is any other program.

Examples:
  csrun_wse python-ws run.py --params configs/params.yaml --mode train --model_dir model_dir
      Train on the embedded system, with this site's sizes.
  csrun_wse --total-nodes 14 --tasks-per-node 8 --cpus-per-task 16 --single-task-nodes 2 --cyclic \\
      python-ws run.py --params configs/params.yaml --mode train --model_dir model_dir --cs_ip 10.0.0.1
      2 nodes with one task each and 12 nodes with 8: 98 tasks.
  csrun_wse --total-nodes 5 --single-task-nodes 2 --tasks-per-node 4 --dry-run python-ws run.py
      Show the srun line and the roles of the 14 tasks.

Ctrl-C or SIGTERM lets the run save and stop (exit code 130 or 143); a second one kills it.
See also: csrun_cpu --help (compile and check without a system), cs (the systems' admin shell), cs-system --help."""


def cpu_help(here: Site) -> str:
    """Return the help of csrun_cpu."""
    defaults = {
        "alloc-node": "True",
        "mount-dirs": ",".join(here.mount_dirs) or "none",
        "logging": "True",
        "exclude-gres": "True",
        "executor": here.executor,
    }
    return f"""usage: csrun_cpu [OPTION]... COMMAND [ARGUMENT]...

Run COMMAND on CPUs, without a CS system: to compile, to validate, to prepare data. It does not wait for a system.

Options, --name VALUE or --name=VALUE, with hyphens or underscores; COMMAND begins at the first other word:
{_table(CPU_OPTIONS, defaults)}
      --help                  This text

Defaults come from {here.source}.

Examples:
  csrun_cpu python-ws run.py --params configs/params.yaml --mode train --validate_only
      Check that every part of the model is supported, in seconds.
  csrun_cpu python
      Open the interpreter that a launch uses.
See also: csrun_wse --help."""


def site_values(here: Site) -> dict[str, str]:
    """Return what each option prints that asks for a value of the site."""
    values = (
        str(here.nodes),
        str(here.tasks_per_node),
        str(here.cpus_per_task),
        here.image,
        ",".join(here.mount_dirs),
        here.gres,
        here.gres_node,
    )
    return dict(zip(SITE_NAMES, values, strict=True))


def _table(options: Sequence[Option], defaults: dict[str, str]) -> str:
    lines = []
    for option in options:
        words = {"flag": "", "number": " N", "text": " TEXT", "truth": " True|False"}[option.kind]
        name = f"      --{option.name}{words}"
        default = f" (default here: {defaults[option.name]})" if option.name in defaults else ""
        separator = "\n" + " " * 30 if len(name) > 28 else " " * (30 - len(name))
        lines.append(f"{name}{separator}{option.meaning}{default}")
    return "\n".join(lines)
