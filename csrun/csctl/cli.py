"""csctl: shows, labels and cancels the jobs of the simulated systems on this machine. It needs no server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cerebras_tensorflow import command_line
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.system import jobs
from csrun.csctl import resources
from csrun.csctl.resources import Filters, ResourceError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one csctl command and return the exit code."""
    # The published client prints "Error: ..." too.
    return command_line.exit_code("Error", lambda: _run(argv), errors=(ResourceError, CerebrasError, ValueError))


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    print(arguments.run(env.read().home, arguments))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="csctl",
        description="Cerebras cluster command line tool, for the simulated systems of this machine.",
        epilog="Examples: csctl get jobs; csctl get jobs -a; csctl cancel job wsjob-...; "
        "csctl label job wsjob-... model=gptj run-",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    get = commands.add_parser("get", help="Get resources")
    get.add_argument("type", metavar="TYPE", help=", ".join(resources.TYPES))
    get.add_argument("name", metavar="NAME", nargs="?", default="")
    get.add_argument("-a", "--all-states", action="store_true", help="finished jobs too")
    get.add_argument("-m", "--my-jobs", action="store_true", help="only my jobs")
    get.add_argument("-l", "--labels", default="", metavar="K=V,...", help="only jobs with these labels")
    get.add_argument("--system", metavar="NAME", help="only jobs of this system")
    get.add_argument("--max-jobs", type=int, default=5000, metavar="N", help="only the newest N jobs (default: 5000)")
    get.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    get.set_defaults(run=_get)

    cancel = commands.add_parser("cancel", help="Cancel job: it saves and stops, and is killed after half a minute")
    cancel.add_argument("type", metavar="job", choices=("job", "jobs"))
    cancel.add_argument("name", metavar="ID")
    cancel.set_defaults(run=_cancel)

    label = commands.add_parser("label", help="Label resources: KEY=VALUE sets a label, KEY- removes it")
    label.add_argument("type", metavar="job", choices=("job", "jobs"))
    label.add_argument("name", metavar="ID")
    label.add_argument("changes", metavar="KEY=VALUE|KEY-", nargs="+")
    label.set_defaults(run=_label)

    export = commands.add_parser("log-export", help="Gather a job's record and log as ID.zip")
    export.add_argument("name", metavar="ID")
    export.add_argument("-p", "--path", type=Path, default=Path(), help="folder for the archive (default: here)")
    export.set_defaults(run=_export)

    volumes = commands.add_parser("check-volumes", help="Check which volumes can be mounted")
    volumes.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    volumes.set_defaults(run=_check_volumes)

    clear = commands.add_parser("clear-worker-cache", help="Clear the worker cache")
    clear.set_defaults(run=lambda _home, _arguments: resources.NO_WORKER_CACHE)

    types = commands.add_parser("types", help="Display resource types")
    types.set_defaults(run=lambda _home, _arguments: "\n".join(resources.TYPES))

    config = commands.add_parser("config", help="View the settings of the client")
    config.add_argument("what", choices=("view",))
    config.add_argument("--raw", action="store_true", help="show all settings")
    config.set_defaults(run=_config)
    return parser


def _get(home: Path, arguments: argparse.Namespace) -> str:
    labels = dict(_pair(word) for word in arguments.labels.split(",") if word)
    filters = Filters(
        all_states=arguments.all_states,
        user=jobs.user_name() if arguments.my_jobs else None,
        labels=labels,
        system=arguments.system,
        limit=arguments.max_jobs,
    )
    wanted = resources.get(home, arguments.type, arguments.name, filters)
    if arguments.output == "table":
        return resources.table(wanted)
    return _formatted(wanted.content if wanted.objects else {}, arguments.output)


def _check_volumes(home: Path, arguments: argparse.Namespace) -> str:
    checked = resources.check_volumes(home)
    return resources.table(checked) if arguments.output == "table" else _formatted(checked.content, arguments.output)


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
