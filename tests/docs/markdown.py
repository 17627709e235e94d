"""Reads code blocks, headings and links of the documents, as CommonMark defines them."""

from __future__ import annotations

import functools
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "reference_implementations"
_MADE = ("_build", "generated", "build", "model_dir")


@dataclass(frozen=True)
class Block:
    """One fenced code block.

    The words after the language say how the block is tested:
        slow: it takes minutes.
        slurm: it needs a running Slurm.
        file=NAME: its text is the content of that file; it is written, not run.
        exits=N: it ends with exit code N instead of 0.
        output: it is the expected output of the block before it; `...` stands for any text.
        norun="REASON": it cannot run in a test.

    Attributes:
        page: The document.
        line: Number of its first line.
        language: First word of the fence's info; empty if there is none.
        options: The other words; a word without a value has an empty one.
        text: The code.
    """

    page: Path
    line: int
    language: str
    options: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@functools.cache
def documents() -> tuple[Path, ...]:
    """Every Markdown file of the repository, sorted. Folders of environments and of made pages are not searched."""
    found = []
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in _MADE]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return tuple(sorted(found))


def pages() -> list[Path]:
    """The documents whose blocks run: README.md, CONTRIBUTING.md, docs/ and reference_implementations/."""
    inner = [path for path in documents() if path.relative_to(ROOT).parts[0] in ("docs", MODELS.name)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *inner]


def folder_of(page: Path) -> Path:
    """Return the folder in which a page's first block runs: that of the page for a model, else the checkout."""
    return page.parent if page.is_relative_to(MODELS) else ROOT


@functools.cache
def tokens(path: Path) -> list[Token]:
    """Parse a document, once in a process."""
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def blocks(path: Path) -> list[Block]:
    """Return the fenced code blocks of a document, without directives of the site such as ```{toctree}."""
    fences = [token for token in tokens(path) if token.type == "fence" and not token.info.startswith("{")]
    return [_block(path, token) for token in fences]


def _block(path: Path, token: Token) -> Block:
    language, *words = shlex.split(token.info) or [""]
    options = {key: value for key, _, value in (word.partition("=") for word in words)}
    return Block(path, (token.map or [0])[0] + 1, language, options, token.content)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and MyST make them."""
    parsed = tokens(path)
    titles = [parsed[number + 1].content for number, token in enumerate(parsed) if token.type == "heading_open"]
    return {slug(title) for title in titles}


def slug(title: str) -> str:
    """Return the anchor of a heading.

    >>> slug("What a run leaves in `model_dir`")
    'what-a-run-leaves-in-model_dir'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def links(path: Path) -> list[str]:
    """Return the targets of a document's links and images."""
    inner = [child for token in tokens(path) for child in token.children or ()]
    targets = [child.attrGet("href") or child.attrGet("src") for child in inner if child.type in ("link_open", "image")]
    return [str(target) for target in targets]
