"""The sizes that code may have; CONTRIBUTING.md names them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cerebras_tensorflow", "csrun", "reference_implementations")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES_OF_MODULE = 450
MOST_LINES_OF_FUNCTION = 60
MOST_NESTING = 4
MOST_METHODS = 20
MOST_MODULES_OF_FOLDER = 21
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Return how many blocks are inside each other below a node, without those of functions and classes in it."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            deepest = max(deepest, nesting(child, depth + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


def faults(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MOST_LINES_OF_FUNCTION:
                yield f"{node.name} has {lines} lines"
            if nesting(node) > MOST_NESTING:
                yield f"{node.name} nests {nesting(node)} deep"
        elif isinstance(node, ast.ClassDef):
            count = sum(isinstance(child, FUNCTIONS) for child in node.body)
            if count > MOST_METHODS and "more than 20 methods" not in (ast.get_docstring(node) or ""):
                yield f"{node.name} has {count} methods; its docstring does not say why"


def test_functions_classes_and_modules_are_short() -> None:
    found = {}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        about = list(faults(ast.parse(text)))
        if text.count("\n") > MOST_LINES_OF_MODULE:
            about.append(f"has {text.count(chr(10))} lines")
        if about:
            found[str(path.relative_to(ROOT))] = about
    assert not found


def test_no_folder_has_too_many_modules() -> None:
    for folder in {path.parent for path in FILES}:
        assert len(list(folder.glob("*.py"))) <= MOST_MODULES_OF_FOLDER, folder


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
        ("def f():\n" + "".join(" " * n + "if x:\n" for n in range(1, 6)) + " " * 6 + "pass\n", "f nests 5 deep"),
        ("class A:\n" + "".join(f"    def m{n}(self): pass\n" for n in range(21)), "A has 21 methods"),
    ],
)
def test_each_rule_finds_its_fault(code: str, fault: str) -> None:
    assert [about.startswith(fault) for about in faults(ast.parse(code))] == [True]


def test_a_ladder_of_elif_is_no_nesting() -> None:
    code = "def f():\n    if a:\n        pass\n" + "    elif a:\n        pass\n" * 9
    assert not list(faults(ast.parse(code)))
