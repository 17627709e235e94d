"""Makes each file that a run writes fail in turn.

    python -m tests.integration.runs.write_faults KIND|all FOLDER [ERRNO ...]

A run without a fault lists the files that it writes. Names that differ only in numbers are one case. Then each case
fails with each error (ENOLCK: only its locks), in a run of its own, from its start on or while the checkpoint of step 4
exists. Such a run must train to its end, or end with one clear error. A second run without a fault must continue from
what the first one left. Every checkpoint is compared with the one of the same step of an unbroken run. This process
needs `faults.c` in LD_PRELOAD; its children are forks after TensorFlow's import.
"""

from __future__ import annotations

import errno
import itertools
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.integration.runs.run_hurt import STEPS, Reference, start

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.ENOLCK)
CSX = ("global_batch_size=8", "micro_batch_size=2")
SPARSE = (
    "sparsity={algorithm: rigl, sparsity: 0.75, update: {freq: 3}, drop_fraction: {type: power, init: .5, beta: .9}}",
)
KINDS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    # store, checkpoint format, CSX, settings of toy_run.py
    "bundle": ("file", "tensorflow", 1, ()),
    "h5": ("mapped", "h5", 1, ()),
    "sparse": ("file", "tensorflow", 1, SPARSE),
    "csx": ("mapped", "tensorflow", 2, CSX),
}


def case_of(path: str) -> str:
    """Return a pattern for the files whose names differ from this one in numbers or in random letters only.

    >>> case_of("/model/model-ckpt-12.index"), case_of("/model/.tfcs_1f.0ab12cd3.partial/program.pb")
    ('/model/model-ckpt-*.index', '/model/.tfcs_*.partial/program.pb')
    """
    path = re.sub(r"tfcs_[0-9a-z]+", "tfcs_*", path)
    path = re.sub(r"wsjob-[0-9a-z]+", "wsjob-*", path)
    path = re.sub(r"\.[0-9a-f]{6,}\.partial", ".*.partial", path)
    return re.sub(r"\*+[.*]*\*", "*", re.sub(r"[0-9]+", "*", path))


class Faults:
    """Runs of one kind, with and without faults, in a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._store, self._form, self._num_csx, self._settings = KINDS[kind]
        self.folder = folder / "run"
        self._model, self._home = self.folder / "model", self.folder / "home"
        self._late = ""
        self._reference = Reference(folder / "unbroken", *self._settings)

    def _run(self, **environ: str) -> tuple[int, str]:
        """Run to the end with some environment variables; return the exit status and the output."""
        self._home.mkdir(parents=True, exist_ok=True)
        settings = (self._store, self._form, self._model, self._home, f"keep={STEPS + 1}", *self._settings)
        run = start(*settings, num_csx=self._num_csx, environ=environ)
        status = run.wait()
        assert status is not None
        return status, run.log.read_text()

    def cases(self) -> list[str]:
        """Return the pattern of each file that a run writes."""
        log = self.folder.with_name("written")
        status, said = self._run(FAULT_LOG=str(log), CEREBRAS_TRACE_STEP="3")
        assert status == 0, said
        self._reference.check_whole(self._model, self._home / "log")
        written = [path.removeprefix(str(self.folder)) for path in log.read_text().splitlines()]
        self._late = next(path for path in written if path.endswith(("-4.index", "-4.h5")))
        shutil.rmtree(self.folder)
        cases = {case_of(path) for path in written if path.startswith(("/model", "/home"))}
        return sorted(cases - {"/home"})  # which has the log of the run

    def hurt(self, case: str, number: int, is_late: bool) -> str:
        """Run with one fault, then without; return how the first one ended."""
        what = "FAULT_LOCKS" if number == errno.ENOLCK else "FAULT_MATCH"
        faults = {what: f"{self.folder}{case}", "FAULT_ERRNO": str(number), "CEREBRAS_TRACE_STEP": "3"}
        if is_late:
            faults["FAULT_WHEN"] = f"{self.folder}{self._late}"
        status, said = self._run(**faults)
        log = self._home / "log"
        newest = self._reference.check(self._model, 4 if is_late else -1, log)
        assert status != 0 or newest == STEPS, said
        errors = [line for line in said.splitlines() if line.startswith("cerebras_tensorflow.errors.")]
        is_clear = "Traceback" not in said and status in (0, 1) and len(errors) == status
        end = ("runs", "error")[status] if is_clear else f"NOT CLEAR, status {status}"
        told = [case, errno.errorcode[number], "late" if is_late else "start", end, newest, errors or warnings(said)]
        print(json.dumps(told), flush=True)
        if not is_clear:
            print(said, flush=True)
        status, said = self._run()
        assert status == 0, said
        self._reference.check_whole(self._model, log)
        shutil.rmtree(self.folder)
        return end


def warnings(said: str) -> list[str]:
    """Return the warnings of a run."""
    return [line for line in said.splitlines() if re.search(r"WARN|warning|cannot|could not", line)]


def main(chosen: str, folder: str, *numbers: str) -> None:
    """Hurt runs of one kind, or of each in turn; print how each ended, and the counts."""
    errors: Sequence[int] = [getattr(errno, name) for name in numbers] or ERRORS
    ends = Counter[str]()
    for kind in KINDS if chosen == "all" else (chosen,):
        (Path(folder) / kind).mkdir(parents=True)
        faults = Faults(kind, Path(folder) / kind)
        cases = faults.cases()
        print(json.dumps({"kind": kind, "cases": cases}), flush=True)
        for case, number, is_late in itertools.product(cases, errors, (False, True)):
            try:
                ends[faults.hurt(case, number, is_late)] += 1
            except AssertionError as error:
                ends["LOST"] += 1
                print(f"LOST {case} {number} {is_late}: {error}", flush=True)
                shutil.rmtree(faults.folder, ignore_errors=True)
    print(json.dumps(ends))
    sys.exit(bool(ends.keys() - {"runs", "error"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
