"""Asks the administrator: at a terminal by a menu, in a script by the next line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from csrun.shell.commands import TICK, completions, help_text

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import Output


def chosen_from_lines(lines: TextIO, say: Callable[[str], None]) -> Callable[[str, Sequence[str]], str | None]:
    """Return a `choose` that takes the answer from the next line of a script."""

    def choose(question: str, choices: Sequence[str]) -> str | None:
        answer = lines.readline().strip().lower()
        choice = _by_prefix(choices, answer)
        say(question if choice is None else f"{question} {TICK} {choice}")
        if choice is None:
            say(f"Expected {' or '.join(choices)} on the next line, found {answer!r}.")
        return choice

    return choose


def chosen_at_terminal(say: Callable[[str], None]) -> Callable[[str, Sequence[str]], str | None]:
    """Return a `choose` with a menu: arrow keys or first letters move, Enter selects, Ctrl-C gives up."""

    def choose(question: str, choices: Sequence[str]) -> str | None:
        choice = _menu(question, choices)
        if choice is not None:
            say(f"{question} {TICK} {choice}")
        return choice

    return choose


def make_prompt(history_file: str | None) -> PromptSession[str]:
    """Return the reader of the `cs>` prompt: line editing, completion by Tab, help by `?`, history.

    Args:
        history_file: File that keeps the lines for the next login; None: lines are not kept.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import run_in_terminal
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    class CommandCompleter(Completer):
        """Completes from the table of commands."""

        def get_completions(self, document, _complete_event):  # type: ignore[no-untyped-def]
            text = document.text_before_cursor
            last = "" if text.endswith(" ") or not text else text.split()[-1]
            for word in completions(text):
                yield Completion(word + " ", start_position=-len(last))

    bindings = KeyBindings()

    @bindings.add("?")
    def show_help(event: KeyPressEvent) -> None:
        text = event.app.current_buffer.text
        run_in_terminal(lambda: print(help_text(text.split())))

    return PromptSession(
        history=InMemoryHistory() if history_file is None else FileHistory(history_file),
        completer=CommandCompleter(),
        complete_while_typing=False,
        key_bindings=bindings,
        output=_output(),
    )


def _menu(question: str, choices: Sequence[str]) -> str | None:
    from prompt_toolkit.application import Application
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window

    index = 0
    typed = ""
    bindings = KeyBindings()

    def shown() -> str:
        marks = ["> " if place == index else "  " for place in range(len(choices))]
        return "\n".join([question, *(mark + choice for mark, choice in zip(marks, choices, strict=True))])

    @bindings.add("up")
    @bindings.add("left")
    def move_up(_event: KeyPressEvent) -> None:
        nonlocal index
        index = (index - 1) % len(choices)

    @bindings.add("down")
    @bindings.add("right")
    @bindings.add("tab")
    def move_down(_event: KeyPressEvent) -> None:
        nonlocal index
        index = (index + 1) % len(choices)

    @bindings.add("<any>")
    def type_letter(event: KeyPressEvent) -> None:
        nonlocal index, typed
        for text in (typed + event.data, event.data):
            match = _by_prefix(choices, text.lower())
            if match is not None:
                typed, index = text, choices.index(match)
                return

    @bindings.add("enter")
    def take(event: KeyPressEvent) -> None:
        event.app.exit(result=choices[index])

    @bindings.add("c-c")
    @bindings.add("c-d")
    @bindings.add("escape", eager=True)
    def give_up(event: KeyPressEvent) -> None:
        event.app.exit(result=None)

    window = Window(FormattedTextControl(shown, show_cursor=False), height=len(choices) + 1, always_hide_cursor=True)
    application: Application[str | None] = Application(
        layout=Layout(window), key_bindings=bindings, erase_when_done=True, output=_output()
    )
    return application.run()


def _output() -> Output:
    from prompt_toolkit.output import create_output

    output = create_output()
    # On a terminal that does not report the cursor's position, every prompt would wait for the report.
    if hasattr(output, "enable_cpr"):
        output.enable_cpr = False
    return output


def _by_prefix(choices: Sequence[str], text: str) -> str | None:
    return next((choice for choice in choices if text and choice.lower().startswith(text)), None)
