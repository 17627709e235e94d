"""Runs the scenarios of a module under the TensorFlow of this Python, and writes what each of them did as JSON.

`python runner.py MODULE.py OUTPUT.json FOLDER [SCENARIO...]`. The same file runs on TensorFlow 2.15 and
on ours; the only difference is `import cerebras_tensorflow`, which fails on 2.15.

A scenario is a function of the module that takes a Run; its name does not begin with "_". The test compares its return
value or the type of its exception, the files in its folder, their events and the steps in the log.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import logging
import os
import re
import sys
import traceback
import warnings

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.simplefilter("ignore")
with contextlib.suppress(ImportError):
    import cerebras_tensorflow  # noqa: F401 - makes tf.estimator ours; TensorFlow 2.15 has its own

    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np  # noqa: E402 - after the environment is set
import tensorflow as tf  # noqa: E402

MATCHES = {
    "final loss": re.compile(r"^Loss for final step: ([-\w.+]+?)\.?$"),
    "saved": re.compile(r"^Saving checkpoints for (\d+) into (.*?)\.\.\.$"),
    "restored": re.compile(r"^Restoring parameters from (.*)$"),
    "evaluated": re.compile(r"^Saving dict for global step (\d+): (.*)$"),
    "skipped": re.compile(r"^Skipping training since max_steps has already saved"),
    "warm": re.compile(r"^Warm-starting variables only in TRAINABLE_VARIABLES"),
}
TIMING_TAGS = ("global_step/sec", "steps_per_second", "examples/sec")
TIMES = re.compile(r"\b1\d{9}\b")


class Run:
    """The argument of a scenario.

    Attributes:
        folder: The scenario's own folder.
        values: Recorded values by name; the test compares them.
    """

    def __init__(self, folder):
        self.folder = folder
        self.values = {}
        self.is_listing = True

    def path(self, *names):
        """Return a path below the folder."""
        return os.path.join(self.folder, *names)

    def note(self, name, value):
        """Record a value for the comparison."""
        self.values[name] = value

    def attempt(self, name, function, *args, **kwargs):
        """Record what a call returns, or the type of its exception."""
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            self.values[name] = {"raises": kinds(error)}
            return None
        self.values[name] = value
        return value

    def ignore_files(self):
        """Leave the files and events out of the comparison."""
        self.is_listing = False


class Facts(logging.Handler):
    """Keeps the lines of the log that say what a run did."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        """Keep a line that matches."""
        text = record.getMessage()
        for name, expression in MATCHES.items():
            match = expression.match(text)
            if match:
                self.lines.append([name, *match.groups()])


def kinds(error):
    """Return the class names of an exception: its own, then its base classes."""
    return [kind.__name__ for kind in type(error).__mro__ if kind not in (object, BaseException)]


def plain(value, folder):
    """Return a value as JSON types, without the parts that differ between runs."""
    if isinstance(value, (bool, int, type(None))):
        return value
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return TIMES.sub("<time>", value.replace(folder, "<folder>"))
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), folder)
    if isinstance(value, dict):
        return {str(plain(key, folder)): plain(item, folder) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain(item, folder)) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item, folder) for item in value]
    if isinstance(value, type):
        return f"class {value.__name__}"
    return f"{type(value).__name__} object"


def files(folder):
    """Return the files below a folder, without times and hosts in their names."""
    listed = set()
    for top, _, names in os.walk(folder):
        for name in names:
            if name.startswith(("performance", "cs_", "run_summary", "params", "train_params")):
                continue
            if "events.out.tfevents" in name:
                name = "events.out.tfevents"
            listed.add(plain(os.path.relpath(os.path.join(top, name), folder), folder))
    ours = re.compile(r"(^|/)(tfcs_|performance/|trace/|compiled/)")
    return sorted(name for name in listed if not ours.search(name))


def event_values(path):
    """Yield [step, tag, value or kind] of an event file. The end may be missing if the writer has not flushed it."""
    with contextlib.suppress(tf.errors.DataLossError):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag not in TIMING_TAGS:
                    kind = value.WhichOneof("value")
                    yield [event.step, value.tag, value.simple_value if kind == "simple_value" else kind]


def events(folder):
    """Return the scalars and other tags of all event files: [folder, step, tag, value or kind]."""
    rows = []
    for top, _, names in os.walk(folder):
        for name in sorted(names):
            if "events.out.tfevents" not in name:
                continue
            place = plain(os.path.relpath(top, folder), folder)
            rows += [[place, *plain(value, folder)] for value in event_values(os.path.join(top, name))]
    return sorted(rows, key=lambda event: [str(part) for part in event[:3]])


def outcome(function, folder):
    """Run one scenario; return what it did."""
    os.makedirs(folder, exist_ok=True)
    run = Run(folder)
    facts = Facts()
    logger = logging.getLogger("tensorflow")
    logger.addHandler(facts)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    done = {}
    try:
        with tf.Graph().as_default() if getattr(function, "in_graph", False) else contextlib.nullcontext():
            done["returned"] = plain(function(run), folder)
    except Exception as error:
        done["raised"] = kinds(error)
        if os.environ.get("DIFFERENTIAL_TRACEBACKS"):
            traceback.print_exc()
    finally:
        logger.removeHandler(facts)
    done["values"] = plain(run.values, folder)
    if run.is_listing:
        done["files"] = files(folder)
        done["events"] = events(folder)
        done["log"] = plain(facts.lines, folder)
    return done


def load(path):
    """Import the module at a path."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scenarios(module):
    """Return the scenarios of a module by name, in order."""
    members = vars(module).items()
    return {
        name: value
        for name, value in members
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    }


def main(path, output, folder, *chosen):
    """Run the scenarios of a module, or the chosen ones."""
    logging.getLogger("tensorflow").handlers.clear()
    results = {}
    for name, function in scenarios(load(path)).items():
        if chosen and name not in chosen:
            continue
        for variable in ("TF_CONFIG",):
            os.environ.pop(variable, None)
        with contextlib.redirect_stdout(io.StringIO()):
            results[name] = outcome(function, os.path.join(folder, name))
    with open(output, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, sort_keys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
