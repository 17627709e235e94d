"""The commands of the `cs>` shell.

Four of them are documented for the original: `config execmode show`, `config execmode setup`, `system standby` and
`system activate`. The other commands are ours, and the help marks them so. Texts on refused commands are ours too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.errors import SystemStateError
from cerebras_tensorflow.system import facts, jobs, registry, state
from cerebras_tensorflow.system.state import MODE_TITLES, SystemState
from cerebras_tensorflow.text import did_you_mean, one_line

OK = 0
REFUSED = 1
UNKNOWN = 2

STANDBY_QUESTION = "This puts the system in standby. Do you want to proceed?"
EXECMODE_QUESTION = "Selected execution mode configuration:"
TICK = "\N{HEAVY CHECK MARK}"


@dataclass(frozen=True)
class Login:
    """Who is at the shell.

    Attributes:
        who: Name for the log of changes; None means this process's user.
        may_change: Whether this login may change anything. The file's permissions must allow it too.
    """

    who: str | None = None
    may_change: bool = True


@dataclass(frozen=True)
class Session:
    """What a command needs: the system, the user, and ways to print and to ask.

    Attributes:
        home: Folder of the systems.
        system: Name of the system that the shell is logged in to.
        say: Prints a line.
        choose: Asks a question with choices; returns the chosen one, or None if the user gives up.
        login: Who is at the shell.
        history: The lines entered so far.
    """

    home: Path
    system: str
    say: Callable[[str], None]
    choose: Callable[[str, Sequence[str]], str | None]
    login: Login = Login()
    history: Sequence[str] = ()

    def check_administrator(self) -> None:
        """Check that the person at the shell may change the system.

        Raises:
            SystemStateError: If not.
        """
        if not self.login.may_change:
            raise SystemStateError(f"only administrators may change this system; {self.login.who} may only look")
        registry.check_administrator(self.home)

    def change(self, transition: Callable[[SystemState], SystemState], what: str) -> SystemState:
        """Change the system as an administrator, and return its new state."""
        self.check_administrator()
        return registry.change(self.home, self.system, transition, what, self.login.who)


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        words: Its name, e.g. ("system", "standby").
        meaning: For the help.
        run: Runs the command. Takes the words that follow its name, returns an exit code.
        arguments: Words that the help shows and that Tab completes; all are optional.
        is_documented: Whether the original's public documentation shows the command.
    """

    words: tuple[str, ...]
    meaning: str
    run: Callable[[Session, Sequence[str]], int]
    arguments: tuple[str, ...] = ()
    is_documented: bool = False


def execmode_show(session: Session, _arguments: Sequence[str]) -> int:
    """Print the configured mode."""
    mode = registry.read(session.home, session.system).execution_mode
    session.say(f"Configured Execution Mode : {MODE_TITLES[mode].upper()}")
    return OK


def execmode_setup(session: Session, arguments: Sequence[str]) -> int:
    """Let an administrator choose the mode; the system must be in standby."""
    before = registry.read(session.home, session.system)
    session.check_administrator()
    state.with_mode(before, before.execution_mode)  # refuse before asking
    if arguments:
        wanted = " ".join(arguments).replace("_", " ").replace("-", " ").lower()
        title = next((title for title in MODE_TITLES.values() if title.lower() == wanted), None)
        if title is None:
            asked = " ".join(arguments)
            meant = did_you_mean(asked, MODE_TITLES)
            session.say(f"Unknown execution mode {asked!r}: expected {' or '.join(MODE_TITLES)}{meant}")
            return UNKNOWN
        session.say(f"{EXECMODE_QUESTION} {TICK} {title}")
    else:
        title = session.choose(EXECMODE_QUESTION, list(MODE_TITLES.values()))
        if title is None:
            session.say("Nothing was changed.")
            return REFUSED
    mode = next(mode for mode, known in MODE_TITLES.items() if known == title)
    session.change(lambda before: state.with_mode(before, mode), f"config execmode setup {mode}")
    return OK


def system_standby(session: Session, arguments: Sequence[str]) -> int:
    """Ask for confirmation, then put the system in standby."""
    session.check_administrator()
    state.to_standby(registry.read(session.home, session.system))  # refuse before asking
    if "--yes" in arguments:
        session.say(STANDBY_QUESTION + f" {TICK} yes")
    elif session.choose(STANDBY_QUESTION, ["yes", "no"]) != "yes":
        session.say("Nothing was changed.")
        return REFUSED
    session.change(state.to_standby, "system standby")
    session.say(f"{session.system} is in STANDBY.")
    return OK


def system_activate(session: Session, _arguments: Sequence[str]) -> int:
    """Reboot the system into its configured mode, and wait until it is active."""
    after = session.change(lambda before: state.activated(before, time.time()), "system activate")
    session.say(f"{session.system} is rebooting (simulated).")
    time.sleep(min(max(0.0, after.boot_ends_at - time.time()), facts.REBOOT_WALL_S.value))
    session.say(f"{session.system} is ACTIVE in {MODE_TITLES[after.execution_mode]} mode.")
    return OK


def system_show(session: Session, _arguments: Sequence[str]) -> int:
    """Print the system's name, address, state, mode and jobs."""
    now = registry.read(session.home, session.system)
    live = jobs.listed(session.home, jobs.LIVE, session.system)
    running = next((f"{job.id} of {one_line(job.user)}" for job in live if job.phase == jobs.RUNNING), "none")
    chosen = "set by an administrator" if now.is_mode_pinned else "follows the run"
    rows = {
        "Name": now.name,
        "Address": now.address,
        "Kind": "CS-2, simulated",
        "Software": now.software_version or "unknown",
        "State": now.phase(time.time()),
        "Execution Mode": f"{MODE_TITLES[now.execution_mode].upper()} ({chosen})",
        "Running Job": running,
        "Queued Jobs": str(sum(job.phase == jobs.QUEUED for job in live)),
    }
    for name, value in rows.items():
        session.say(f"{name:<15}: {value}")
    return OK


def config_show(session: Session, _arguments: Sequence[str]) -> int:
    """Print the configuration and its latest changes."""
    execmode_show(session, ())
    for change in registry.changes(session.home, session.system, limit=10):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.at))
        session.say(f"  {at}  {one_line(change.who)}: {change.what}")
    return OK


def show_jobs(session: Session, _arguments: Sequence[str]) -> int:
    """Print the jobs that run or wait on the system."""
    live = jobs.listed(session.home, jobs.LIVE, session.system)
    if not live:
        session.say(f"No jobs on {session.system}.")
    for job in live:
        session.say(f"{job.id}  {job.phase:<8} {one_line(job.user):<12} {one_line(job.description)}")
    return OK


def show_history(session: Session, _arguments: Sequence[str]) -> int:
    """Print the lines entered so far."""
    for number, line in enumerate(session.history, start=1):
        session.say(f"{number:4d}  {line}")
    return OK


def show_help(session: Session, arguments: Sequence[str]) -> int:
    """Print the commands that begin with the given words."""
    session.say(help_text(arguments))
    return OK


COMMANDS = (
    Command(("config", "execmode", "show"), "Show the configured execution mode", execmode_show, (), True),
    Command(
        ("config", "execmode", "setup"),
        "Choose the execution mode (in STANDBY only)",
        execmode_setup,
        tuple(MODE_TITLES),
        True,
    ),
    Command(("config", "show"), "Show the configuration and its latest changes", config_show),
    Command(
        ("system", "standby"), "Put the system in STANDBY, where it refuses runs", system_standby, ("--yes",), True
    ),
    Command(("system", "activate"), "Reboot into the configured mode and become ACTIVE", system_activate, (), True),
    Command(("system", "show"), "Show name, address, state, mode and jobs", system_show),
    Command(("jobs",), "Show the jobs that run or wait", show_jobs),
    Command(("history",), "Show the lines entered so far", show_history),
    Command(("help",), "Show commands; `?` at the end of a line does too", show_help),
)


def execute(session: Session, line: str) -> int:
    """Run one line and return its exit code. An empty line or a comment does nothing.

    Raises:
        CerebrasError: If the system's state or this user's permissions forbid it; the text says what to do.
    """
    words = line.split("#")[0].split()
    if not words:
        return OK
    if words[-1].endswith("?"):
        words[-1] = words[-1].removesuffix("?")
        return show_help(session, [word for word in words if word])
    for command in COMMANDS:
        size = len(command.words)
        if tuple(words[:size]) == command.words:
            rest = words[size:]
            if rest and not command.arguments and command.run is not show_help:
                session.say(f"`{' '.join(command.words)}` takes no arguments, not {' '.join(rest)!r}")
                return UNKNOWN
            return command.run(session, rest)
    meant = did_you_mean(" ".join(words), (" ".join(command.words) for command in COMMANDS))
    session.say(f"Unknown command {line.strip()!r}{meant or '.'}\n{help_text(words[:1])}")
    return UNKNOWN


def matching(words: Sequence[str]) -> list[Command]:
    """Return the commands that begin with words; the last word may be unfinished."""
    if not words:
        return list(COMMANDS)
    *whole, last = words
    size = len(whole)
    return [
        command
        for command in COMMANDS
        if command.words[:size] == tuple(whole) and len(command.words) > size and command.words[size].startswith(last)
    ]


def completions(text: str) -> list[str]:
    """Return the words that can complete an unfinished line.

    >>> completions("config e"), completions("system standby ")
    (['execmode'], ['--yes'])
    """
    words = text.split()
    if not words or text.endswith(" "):
        words.append("")
    *whole, last = words
    candidates = [command.words[len(whole)] for command in matching(words)]
    candidates += [
        argument
        for command in COMMANDS
        if tuple(whole) == command.words
        for argument in command.arguments
        if argument.startswith(last)
    ]
    if not whole:
        candidates += [word for word in ("exit",) if word.startswith(last)]
    return list(dict.fromkeys(candidates))


def help_text(words: Sequence[str]) -> str:
    """Return the help on the commands that begin with words; on all commands if none does."""
    chosen = matching(words) or list(COMMANDS)
    lines = [
        f"  {' '.join((*command.words, *(f'[{argument}]' for argument in command.arguments))):<60}{command.meaning}"
        + ("" if command.is_documented else " (ours)")
        for command in chosen
    ]
    lines.append(f"  {'exit':<60}Leave the shell (ours)")
    return "\n".join(["Commands (those marked `ours` are not in the original's public documentation):", *lines])
