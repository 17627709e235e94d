"""cs-system: makes, lists, removes and serves simulated systems."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cerebras_tensorflow import command_line
from cerebras_tensorflow.config import env
from cerebras_tensorflow.system import facts, jobs, registry
from cerebras_tensorflow.text import did_you_mean, is_port

if TYPE_CHECKING:
    from csrun.shell.ssh import SshSettings

MODES = {"pipelined": env.PIPELINED, "weight-streaming": env.WEIGHT_STREAMING}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one cs-system command and return the exit code."""
    return command_line.exit_code("cs-system", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    print(arguments.run(arguments))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="cs-system",
        description="Simulated CS-2 systems of this user. Without any, runs use the embedded one, "
        f"{registry.EMBEDDED_NAME} at {registry.EMBEDDED_ADDRESS}.",
        epilog="Example: cs-system create lab --address 10.0.0.1 --mode weight-streaming; "
        "a script then runs with --cs_ip 10.0.0.1. The shell `cs --system lab` changes its state.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = commands.add_parser("create", help="make a system")
    create.add_argument("name", metavar="NAME", help="letters, digits, dot, dash, underscore")
    create.add_argument("--address", metavar="HOST[:PORT]", help="what scripts pass as --cs_ip (default: NAME:9000)")
    create.add_argument(
        "--mode", type=_mode, default=env.PIPELINED, help="pipelined or weight-streaming (default: pipelined)"
    )
    create.set_defaults(run=_create)
    listing = commands.add_parser("list", help="show all systems")
    listing.set_defaults(run=_list)
    removing = commands.add_parser("remove", help="remove a system on which nothing runs")
    removing.add_argument("name", metavar="NAME")
    removing.set_defaults(run=_remove)
    serving = commands.add_parser(
        "serve",
        help="make a system and all jobs available over gRPC",
        description="Other hosts run on the system with --cs_ip HOST:PORT (CSAUTH_TOKEN, CEREBRAS_TLS_CERT); the "
        "published csctl client works with --csconfig FILE. "
        "Beyond loopback it needs TLS and a token. A certificate for tests: openssl req -x509 -newkey rsa:2048 -nodes "
        "-days 30 -keyout key.pem -out cert.pem -subj /CN=cs -addext "
        "subjectAltName=DNS:*.cluster-server.cerebras.local",
    )
    serving.add_argument(
        "--listen", default=f"127.0.0.1:{facts.PORT}", metavar="HOST:PORT", help="(default: %(default)s)"
    )
    serving.add_argument(
        "--system",
        default=registry.EMBEDDED_NAME,
        metavar="NAME",
        help="the system that other hosts get (default: %(default)s)",
    )
    serving.add_argument("--tls-cert", type=Path, metavar="PEM")
    serving.add_argument("--tls-key", type=Path, metavar="PEM")
    serving.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="token of the clients, their CSAUTH_TOKEN (default: created in CEREBRAS_HOME)",
    )
    serving.add_argument("--write-csconfig", type=Path, metavar="FILE", help="write the file for csctl --csconfig")
    serving.add_argument("--ssh", metavar="HOST:PORT", help="serve the system's cs> shell over ssh (default: off)")
    serving.add_argument(
        "--ssh-admin-keys", type=Path, metavar="FILE", help="keys of administrators; they log in as admin"
    )
    serving.add_argument("--ssh-viewer-keys", type=Path, metavar="FILE", help="keys of users who may only look")
    serving.add_argument("--ssh-password-file", type=Path, metavar="FILE", help="the password of admin (default: none)")
    serving.add_argument(
        "--ssh-host-key", type=Path, metavar="FILE", help="created if missing (default: in CEREBRAS_HOME)"
    )
    serving.set_defaults(run=_serve)
    return parser


def _serve(arguments: argparse.Namespace) -> str:
    from csrun.serving import serve as serving  # gRPC is slow to import

    home = env.read().home
    serving.serve(
        home,
        serving.Settings(
            *_host_port("--listen", arguments.listen),
            arguments.tls_cert,
            arguments.tls_key,
            arguments.token_file,
            arguments.write_csconfig,
            arguments.system,
            _ssh_settings(home, arguments),
        ),
    )
    return "Ended."


def _ssh_settings(home: Path, arguments: argparse.Namespace) -> SshSettings | None:
    if arguments.ssh is None:
        return None
    from csrun.shell.ssh import HOST_KEY_FILE, SshSettings

    return SshSettings(
        *_host_port("--ssh", arguments.ssh),
        arguments.ssh_admin_keys,
        arguments.ssh_viewer_keys,
        arguments.ssh_password_file,
        arguments.ssh_host_key or home / HOST_KEY_FILE,
    )


def _host_port(option: str, text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not is_port(port):  # gRPC takes larger ones modulo 65536
        raise ValueError(f"{option} {text!r}: expected HOST:PORT, with a port up to 65535")
    return host, int(port)


def _mode(text: str) -> str:
    mode = MODES.get(text.lower().replace("_", "-").replace(" ", "-"))
    if mode is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a mode: expected {' or '.join(MODES)}{did_you_mean(text, MODES)}"
        )
    return mode


def _create(arguments: argparse.Namespace) -> str:
    state = registry.create(env.read().home, arguments.name, arguments.address, arguments.mode)
    return f"Created {state.name}, {state.execution_mode}. Scripts reach it with --cs_ip {state.address}"


def _remove(arguments: argparse.Namespace) -> str:
    registry.remove(env.read().home, arguments.name)
    return f"Removed {arguments.name}"


def _list(_arguments: argparse.Namespace) -> str:
    home = env.read().home
    rows = [("NAME", "ADDRESS", "MODE", "STATE", "JOBS")]
    for state in registry.listed(home):
        mode = state.execution_mode if state.is_mode_pinned else f"{state.execution_mode} (follows the run)"
        running = jobs.listed(home, jobs.LIVE, state.name)
        rows.append((state.name, state.address, mode, state.phase(time.time()), str(len(running))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
