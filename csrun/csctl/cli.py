"""csctl: shows, labels and cancels the jobs of the simulated systems on this machine. It needs no server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cerebras_tensorflow import command_line
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.system import job_priority, jobs
from csrun.csctl import resources
from csrun.csctl.documented import add_refused_options, refuse
from csrun.csctl.resources import Filters, ResourceError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one csctl command and return the exit code."""
    # The published client prints "Error: ..." too.
    return command_line.exit_code(
        "csctl", lambda: _run(argv), errors=(ResourceError, CerebrasError, ValueError), prefix="Error: "
    )


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    refuse(words)
    arguments = _parser().parse_args(words)
    print(arguments.run(env.read().home, arguments))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="csctl",
        description="Cerebras cluster command line tool, for the simulated systems of this machine.",
        epilog="Examples: csctl get jobs; csctl get jobs -a; csctl cancel job wsjob-...; "
        "csctl label job wsjob-... model=gptj run-",
    )
    _add_common_options(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    get = _add_command(commands, "get", "Get resources")
    get.add_argument("type", metavar="TYPE", help=", ".join(resources.TYPES))
    _add_list_options(get)
    get.add_argument("name", metavar="NAME", nargs="?", default="")
    part = get.add_mutually_exclusive_group()
    part.add_argument("--node-only", dest="role", action="store_const", const="worker", help="cluster: no systems")
    part.add_argument("--system-only", dest="role", action="store_const", const="system", help="cluster: only systems")
    part.add_argument("--role", metavar="ROLE", help="cluster: only this role, worker or system")
    get.set_defaults(run=_get)
    _add_job_commands(commands)

    cancel = _add_command(commands, "cancel", "Cancel job: it saves and stops, and is killed after half a minute")
    cancel.add_argument("type", metavar="job", choices=("job", "jobs", "pod"))  # to the published client, a pod is one
    cancel.add_argument("name", metavar="ID")
    cancel.set_defaults(run=_cancel)

    label = _add_command(commands, "label", "Label resources: KEY=VALUE sets a label, KEY- removes it")
    label.add_argument("type", metavar="job", choices=("job", "jobs"))
    label.add_argument("name", metavar="ID")
    label.add_argument("changes", metavar="KEY=VALUE|KEY-", nargs="+")
    _add_output(label, default="")
    label.set_defaults(run=_label)

    _add_other_commands(commands)
    return parser


def _add_other_commands(commands: Any) -> None:
    export = _add_command(commands, "log-export", "Gather a job's record and log as ID.zip")
    export.add_argument("name", metavar="ID")
    export.add_argument("-p", "--path", type=Path, default=Path(), help="folder for the archive (default: here)")
    export.add_argument("--target-type", choices=("local",), help="only local: into the folder of --path")
    export.set_defaults(run=_export)

    volumes = _add_command(commands, "check-volumes", "Check which volumes can be mounted")
    _add_output(volumes)
    volumes.set_defaults(run=_check_volumes)

    clear = _add_command(commands, "clear-worker-cache", "Clear the worker cache")
    clear.set_defaults(run=lambda _home, _arguments: resources.NO_WORKER_CACHE)

    types = _add_command(commands, "types", "Display resource types")
    types.set_defaults(run=lambda _home, _arguments: "\n".join(resources.TYPES))

    config = _add_command(commands, "config", "View the settings of the client")
    config.add_argument("what", choices=("view",), metavar="view")
    config.add_argument("--raw", action="store_true", help="show all settings")
    config.set_defaults(run=_config)

    cluster = _add_command(commands, "cluster", "Show how the cluster is connected")
    cluster.add_argument("what", choices=("topology",), metavar="topology")
    cluster.add_argument("--switch-only", action="store_true", help="only connections of switches")
    cluster.set_defaults(run=lambda _home, _arguments: resources.NO_SWITCHES)

    session = _add_command(commands, "session", "Show reserved systems")
    session.add_argument("what", choices=("get", "list"), metavar="get|list")
    session.add_argument("name", metavar="NAME", nargs="?", default="")
    session.add_argument("--redundant", action="store_true", help="list: only redundant sessions")
    session.add_argument("-u", "--unassigned-only", action="store_true", help="list: only what no session has")
    _add_output(session)
    session.set_defaults(run=_session)


def _add_command(commands: Any, name: str, text: str) -> Any:
    """Return the parser of a new command, which takes the options of all commands too."""
    parser = commands.add_parser(name, help=text, conflict_handler="resolve")
    _add_common_options(parser)
    return parser


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", choices=(resources.NAMESPACE,), help="there is only one")
    add_refused_options(parser)


def _add_output(command: argparse.ArgumentParser, default: str = "table") -> None:
    command.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default=default)


def _add_list_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("-a", "--all-states", action="store_true", help="finished jobs too")
    command.add_argument("-e", "--error-only", action="store_true", help="only failed jobs")
    command.add_argument("-m", "--my-jobs", action="store_true", help="only my jobs")
    command.add_argument("-l", "--labels", default="", metavar="K=V,...", help="only jobs with these labels")
    command.add_argument("--system", metavar="NAME", help="only jobs of this system")
    command.add_argument("--max-jobs", type=int, default=5000, metavar="N", help="only the newest N (default: 5000)")
    command.add_argument("--sort", choices=("age", "priority"), default="age", help="order of jobs (default: age)")
    command.add_argument("--order", choices=("asc", "desc"), default="asc", help="direction of --sort (default: asc)")
    _add_output(command)


def _add_job_commands(commands: Any) -> None:
    job = _add_command(commands, "job", "Show jobs, or change the priority of one")
    kinds = job.add_subparsers(required=True, metavar="COMMAND")
    listed = _add_command(kinds, "list", "List jobs")
    _add_list_options(listed)
    listed.set_defaults(run=_get, type="jobs", name="", role=None)
    one = _add_command(kinds, "get", "Show one job")
    one.add_argument("name", metavar="ID")
    _add_output(one)
    one.set_defaults(run=_get_job)
    priority = _add_command(kinds, "set-priority", "Set the place of a job in the queue: p1 is first, p2 the default")
    priority.add_argument("name", metavar="ID")
    priority.add_argument("priority", metavar="PRIORITY", help="p1, p2, p3, or 100 to 399; root also p0 or 1 to 99")
    _add_output(priority, default="")
    priority.set_defaults(run=_set_priority)


def _get(home: Path, arguments: argparse.Namespace) -> str:
    labels = dict(_pair(word) for word in arguments.labels.split(",") if word)
    filters = Filters(
        all_states=arguments.all_states,
        user=jobs.user_name() if arguments.my_jobs else None,
        labels=labels,
        system=arguments.system,
        limit=arguments.max_jobs,
        errors_only=arguments.error_only,
        sort=arguments.sort,
        is_descending=arguments.order == "desc",
        role=arguments.role or "",
    )
    return _shown(resources.get(home, arguments.type, arguments.name, filters), arguments.output)


def _get_job(home: Path, arguments: argparse.Namespace) -> str:
    return _shown(resources.get(home, "job", arguments.name), arguments.output)


def _shown(wanted: resources.Resources, output: str) -> str:
    if output in ("table", "wide"):
        return resources.table(wanted)
    return _formatted(wanted.content if wanted.objects else {}, output)


def _set_priority(home: Path, arguments: argparse.Namespace) -> str:
    from csrun.csctl import actions

    priority = job_priority.parse(arguments.priority)
    actions.set_priority(home, arguments.name, priority, os.getuid())
    if arguments.output:
        return _get_job(home, arguments)
    return f"successfully updated {arguments.name} job priority to {arguments.priority}"


def _session(_home: Path, arguments: argparse.Namespace) -> str:
    if arguments.name:
        raise ResourceError(f"session {arguments.name} not found: no systems are reserved on this machine")
    if arguments.output in ("json", "yaml"):
        return _formatted({}, arguments.output)
    return "No sessions: every system of this machine is free for every job"


def _check_volumes(home: Path, arguments: argparse.Namespace) -> str:
    return _shown(resources.check_volumes(home), arguments.output)


def _cancel(home: Path, arguments: argparse.Namespace) -> str:
    from csrun.csctl import actions  # slow to import; `get jobs` does not need it

    job = actions.request_cancel(home, arguments.name, jobs.user_name())
    actions.finish_cancel(home, job)
    return "Job canceled successfully"


def _export(home: Path, arguments: argparse.Namespace) -> str:
    from csrun.csctl import actions

    return str(actions.export_log(home, arguments.name, arguments.path))


def _label(home: Path, arguments: argparse.Namespace) -> str:
    from csrun.csctl import actions

    changes: dict[str, str | None] = {}
    for word in arguments.changes:
        if word.endswith("-") and "=" not in word:
            changes[word[:-1]] = None
        else:
            key, value = _pair(word)
            changes[key] = value
    actions.label(home, arguments.name, changes)
    if arguments.output:
        return _get_job(home, arguments)
    return f"job/{arguments.name} was patched"


def _config(home: Path, arguments: argparse.Namespace) -> str:
    settings = resources.client_settings(f"file://{home}", {})
    if not arguments.raw:
        del settings["contexts"]  # the published client does not show them either
    return _formatted(settings, "yaml")


def _pair(word: str) -> tuple[str, str]:
    key, separator, value = word.partition("=")
    if not separator or not key:
        raise ValueError(f"a label has the form KEY=VALUE, not {word!r}")
    return key, value


def _formatted(content: dict[str, Any], output: str) -> str:
    if output == "json":
        return json.dumps(content, indent=2, sort_keys=True)
    import yaml  # only this output needs it

    return str(yaml.safe_dump(content)).rstrip()
