"""Writes NAMES.md, the table as a person reads it: `python -m cerebras_tensorflow.compat.names_md`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from cerebras_tensorflow.compat.names import ROOTS, TABLE, Name

HEAD = """\
# Compatibility imports

The modules and names that old code imports. names.py makes this page: `python -m cerebras_tensorflow.compat.names_md`.
A test checks that both agree, and that each name resolves as it says here.

Status: *full* does what the original documents; *accepted and noted* is taken, kept and said once in the log, without
effect on the simulated system; *absent* raises AttributeError or ImportError.

Modules of `tensorflow_estimator` that are not listed (such as `tensorflow_estimator.python.estimator.canned.head`), and
names of listed ones that are not listed, come from the wheel tensorflow-estimator 2.15, which is installed with us. Its
files run unchanged on our Estimator, EstimatorSpec and RunConfig, with Keras 2. In TensorFlow 1 their name
was `tensorflow.python.estimator.*`, which works too.

When the names of a root can be imported:

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
