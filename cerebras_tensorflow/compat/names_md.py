"""Writes NAMES.md, the readable form of the table: `python -m cerebras_tensorflow.compat.names_md`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from cerebras_tensorflow.compat.names import ROOTS, TABLE, Name

HEAD = """\
# Compatibility imports

The modules and names that old code imports. This page is generated from the table in names.py by
`python -m cerebras_tensorflow.compat.names_md`. A test checks that the page matches the table, and that each name
resolves as the table says.

| status | meaning |
|---|---|
| full | does what the original documents |
| accepted and noted | accepted and kept, without effect on the simulated system; the log says so once |
| absent | raises AttributeError or ImportError |

The wheel tensorflow-estimator 2.15, which is installed with this package, provides all of `tensorflow_estimator` that
is not listed here, such as `tensorflow_estimator.python.estimator.canned.head`. Its files run unchanged on our
Estimator, EstimatorSpec and RunConfig, with Keras 2. The TensorFlow 1 name of these modules,
`tensorflow.python.estimator.*`, works too.

Each name belongs to a root. The root decides when the name can be imported:

"""


def text() -> str:
    """Return NAMES.md."""
    lines = [HEAD, "| root | importable |\n|---|---|\n"]
    lines += [f"| {root} | {when} |\n" for root, when in ROOTS.items()]
    lines.append("\n| module | names | releases | root | status | note |\n|---|---|---|---|---|---|\n")

    def key(row: Name) -> tuple[str, str, str, str, str]:
        return row.module, row.releases, row.root, row.status, row.note

    for (module, releases, root, status, note), rows in groupby(sorted(TABLE, key=key), key):
        shown = ", ".join(f"`{row.name}`" for row in rows if row.name) or "(the module)"
        lines.append(f"| `{module}` | {shown} | {releases} | {root} | {status} | {note} |\n")
    return "".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("NAMES.md").write_text(text(), encoding="utf-8")
