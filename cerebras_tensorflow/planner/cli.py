"""The command cs-plan plans one training step from shapes alone. Exit code 2 means bad input."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebras_tensorflow import command_line
from cerebras_tensorflow.config.env import EXECUTION_MODES, WEIGHT_STREAMING
from cerebras_tensorflow.errors import CerebrasError, SettingsError
from cerebras_tensorflow.planner.shapes import ShapeInputs, parse_shape
from cerebras_tensorflow.planner.variants import Variant, combinations, numbers, words
from cerebras_tensorflow.system.wafer.figures import DEFAULT_RELEASE
from cerebras_tensorflow.system.wafer.scaling import scaling
from cerebras_tensorflow.system.wafer.summary import summary_text
from cerebras_tensorflow.text import did_you_mean, did_you_mean_file, tell

if TYPE_CHECKING:
    from cerebras_tensorflow.estimator.config.cs_config import CSConfig
    from cerebras_tensorflow.perf.timeline import Timeline
    from cerebras_tensorflow.planner.plan import StepPlan
    from cerebras_tensorflow.planner.rates import Rates

_BAD_INPUT = 2
_MODEL = "MODEL"  # name in a reference model's run.py: an object with model_fn, read_params and input_fn
_SERVERS = "servers"
_STORES = ("auto", "memory", _SERVERS, "file")  # the choices of CSConfig, which is slow to import


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""

    def run() -> int:
        _run(_parser().parse_args(argv))
        return 0

    return command_line.exit_code(
        "cs-plan", run, errors=(CerebrasError, ValueError, TypeError, OSError), failure=_BAD_INPUT
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="cs-plan",
        description="Plan a step of a model from shapes: bytes moved, peak memory, estimated time. No step is run.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", help="file.py:model_fn or package.module:model_fn; a reference model's run.py needs no function"
    )
    parser.add_argument(
        "-p",
        "--params",
        help="params.yaml, passed to model_fn; its csconfig and runconfig apply as in a run, options override them",
    )
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="NAME=DTYPE:DIMS",
        help="a feature, such as input_ids=int32:8x2048 (default: the batch of a reference model's input_fn)",
    )
    parser.add_argument("-l", "--labels", action="append", default=[], metavar="DTYPE:DIMS", help="the labels")
    parser.add_argument(
        "-m", "--mode", choices=("train", "eval", "predict"), help="what to plan (default: runconfig, else train)"
    )
    parser.add_argument("--execution_mode", choices=EXECUTION_MODES, default=WEIGHT_STREAMING)
    parser.add_argument("--weight_store", choices=_STORES, help="as in csconfig (default: csconfig, else auto)")
    parser.add_argument("--window_bytes", type=int, help="bytes of weights in memory at a time (stream_window_bytes)")
    parser.add_argument(
        "--batch_size",
        type=numbers,
        metavar="N[,N...]",
        help="samples that one system takes in a step, instead of those of the input; several give a table",
    )
    parser.add_argument(
        "--memory_budget",
        type=lambda text: text.split(","),
        metavar="SIZE[,SIZE...]",
        help="most memory that the process may take, such as 4GB",
    )
    parser.add_argument(
        "--micro_batch_size",
        type=words,
        metavar="N[,N...]",
        help="samples of a batch to compute at a time: a number, auto or none (default: params, else none)",
    )
    _add_systems(parser)
    _add_outputs(parser)
    return parser


def _add_systems(parser: argparse.ArgumentParser) -> None:
    """Add the options of the simulated systems."""
    parser.add_argument(
        "--num_csx", type=numbers, metavar="N[,N...]", help="CS systems, each with a batch of its own (default: params)"
    )
    parser.add_argument(
        "--release",
        default=DEFAULT_RELEASE,
        help="release of the software on the simulated systems, such as 1.7.1, 1.8 or 2.1, for weight "
        "streaming (default: %(default)s)",
    )
    parser.add_argument(
        "--allow_oversize",
        action="store_true",
        default=None,
        help="go on, without a placement, if the model does not fit on the simulated wafer",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is measured here and what is written."""
    parser.add_argument("--store_dir", help="folder on the disk of the weight store (default: csconfig, else .)")
    parser.add_argument("--no_rates", action="store_true", help="do not measure this machine; leave out its step time")
    parser.add_argument("--trace", metavar="FILE", help="write the planned schedule as Chrome-trace JSON (Perfetto)")
    parser.add_argument("--picture", metavar="FILE", help="write the planned schedule as a PNG; needs matplotlib")
    parser.add_argument(
        "--beside", metavar="FILE", help="add a recorded step's trace to --trace, --picture and --report"
    )
    parser.add_argument("--summary", action="store_true", help="print the layers: shapes, parameters, operations")
    parser.add_argument("--report", metavar="FILE", help="write everything as one HTML page; needs plotly")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object, or one a line")


def _run(options: argparse.Namespace) -> None:
    inputs = _given_inputs(options)
    _check(options)
    content = _params_of(options.params)
    gc.disable()  # millions of objects, none of them garbage: collecting would take a third of the time
    model_fn, reference = load_model(options.model)
    from cerebras_tensorflow.estimator.config.run_config import CSRunConfig
    from cerebras_tensorflow.planner import plan, rates, settings, variants

    # read_params of a reference model fills in defaults and resolves paths relative to the file.
    params = reference.read_params(options.params) if reference is not None and options.params else content
    mode = settings.planned_mode(params, options.mode)

    def config_of(variant: Variant) -> CSConfig:
        given = {
            "weight_store": options.weight_store,
            "stream_window_bytes": options.window_bytes,
            "memory_budget": variant.memory_budget,
            "micro_batch_size": variant.micro_batch_size,
            "num_csx": variant.num_csx,
            "allow_oversize": options.allow_oversize,
        }
        return settings.cs_config(params, given)

    chosen = variants.combinations(options)
    cs_config = config_of(chosen[0])
    store_dir = settings.store_folder(options.store_dir, cs_config)
    has_servers = cs_config.weight_store == _SERVERS
    if has_servers and (options.trace or options.picture):
        raise SettingsError("--trace and --picture need rates, and cs-plan does not measure those of weight servers")
    if inputs is None and (reference is None or not options.params):
        raise settings.no_input(params, mode, "only a reference model's run.py with --params has an input_fn")
    inputs = inputs or settings.batch_of(reference.input_fn(mode), params, mode, CSRunConfig())

    def make(variant: Variant) -> StepPlan:
        batch = inputs.with_batch_size(variant.batch_size)
        config = config_of(variant)
        return plan.plan_step(
            model_fn,
            batch,
            settings.with_micro_batch_size(params, variant.micro_batch_size),
            CSRunConfig(),
            mode,
            options.execution_mode,
            config,
            options.release,
        )

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")  # planning allocates no tensors
        made = list(variants.plans(chosen, make))
    if has_servers and not options.no_rates:
        tell("cs-plan: warning: rates of weight servers are not measured, so no step time is estimated")
    measured = None if options.no_rates or has_servers else rates.measure(store_dir)
    if len(made) > 1:
        _print_table(options, made, measured)
    else:
        _print_plan(options, made[0][1], measured)


def _print_table(options: argparse.Namespace, made: list[tuple[Variant, Any, str]], measured: Rates | None) -> None:
    """Print several plans side by side."""
    from cerebras_tensorflow.planner import plan, report, variants

    rows = []
    for variant, planned, problem in made:
        line = plan.timeline(planned, measured, options.model) if planned is not None and measured is not None else None
        rows.append(variants.Row(variant, planned, problem, plan.step_s(line)[0] if line is not None else None))
        if options.json:
            values = report.plan_values(planned, measured, line) if planned is not None else {"problem": problem}
            print(json.dumps(vars(variant) | values))
    if not options.json:
        print(f"{options.model}, {options.execution_mode}, release {options.release}")
        print(variants.table(rows))


def _given_inputs(options: argparse.Namespace) -> ShapeInputs | None:
    features, labels = ([parse_shape(text) for text in texts] for texts in (options.input, options.labels))
    return ShapeInputs(features, labels) if features or labels else None


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other, before the slow import of TensorFlow.

    Raises:
        SettingsError: If options contradict each other, or --picture is given without matplotlib.
    """
    if options.beside and not (options.trace or options.picture or options.report):
        raise SettingsError("--beside needs --trace, --picture or --report to add the recorded step to")
    if options.no_rates and (options.trace or options.picture):
        raise SettingsError("--trace and --picture need rates; leave out --no_rates")
    one = len(combinations(options)) == 1
    if not one and (options.trace or options.picture or options.report):
        raise SettingsError("--trace, --picture and --report show one plan; give one value to each option")
    if options.report and importlib.util.find_spec("plotly") is None:
        raise SettingsError("--report needs plotly: pip install 'cerebras_tensorflow[report]'")
    if options.picture and importlib.util.find_spec("matplotlib") is None:
        raise SettingsError("--picture needs matplotlib: pip install 'cerebras_tensorflow[pictures]'")


def _print_plan(options: argparse.Namespace, planned: StepPlan, measured: Rates | None) -> None:
    """Print a plan, and write the trace and the picture if they are asked for."""
    from cerebras_tensorflow.perf import chrome_trace, picture
    from cerebras_tensorflow.planner import plan, report

    line = plan.timeline(planned, measured, options.model) if measured is not None else None
    if options.json:
        print(json.dumps(report.plan_values(planned, measured, line)))
    else:
        print(report.plan_text(options.model, planned, measured, line))
    if options.summary and not options.json:
        print(summary_text(planned.network, planned.program.mode))
    if options.report:
        _write_report(options, planned, line)
    if line is None:
        return
    lines = [line, *(chrome_trace.read_chrome_trace(Path(options.beside)) if options.beside else ())]
    if options.trace:
        chrome_trace.write_chrome_trace(Path(options.trace), *lines)
    if options.picture:
        picture.write_picture(Path(options.picture), *lines)


def _title(options: argparse.Namespace) -> str:
    """Return the model's name for people: run.py says little without its folder and its params."""
    script = Path(options.model)
    name = f"{script.resolve().parent.name}/{script.name}" if script.suffix == ".py" else options.model
    return f"{name}, {Path(options.params).name}" if options.params else name


def _write_report(options: argparse.Namespace, planned: StepPlan, line: Timeline | None) -> None:
    from cerebras_tensorflow.compiler.report import memory_plan_rows
    from cerebras_tensorflow.perf import chrome_trace
    from cerebras_tensorflow.perf.html.content import Content
    from cerebras_tensorflow.perf.html.page import write_report

    recorded = chrome_trace.read_chrome_trace(Path(options.beside)) if options.beside else []
    content = Content(
        title=_title(options),
        simulation=planned.cs2,
        network=planned.network,
        planned=line,
        measured=next((timeline for timeline in recorded if timeline.is_measured), None),
        memory=memory_plan_rows(planned.program, planned.memory),
        scaling=scaling(planned.network, planned.workload),
    )
    write_report(Path(options.report), content)
    tell(f"cs-plan: wrote {options.report}")


def load_model(text: str) -> tuple[Callable[..., Any], Any]:
    """Return the model_fn that a text names, and its reference model (None for any other model_fn).

    Args:
        text: file.py:function or package.module:function. The function may be left out for a module with a MODEL.

    Raises:
        SettingsError: If there is no such model_fn.
    """
    place, _, name = text.partition(":")
    module = _load_module(place)
    if not name:
        reference = getattr(module, _MODEL, None)
        if reference is None:
            functions = [key for key, value in vars(module).items() if inspect.isfunction(value)] or ["model_fn"]
            raise SettingsError(f"{place} does not say which function is its model_fn; write {place}:{functions[0]}")
        model_fn = reference.model_fn
        return (load_model(model_fn)[0] if isinstance(model_fn, str) else model_fn), reference
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise SettingsError(
            f"{place} has no function {name!r}{did_you_mean(name, names)}; it has {', '.join(names) or 'none'}"
        )
    return function, None


def _load_module(place: str) -> Any:
    if not place.endswith(".py"):
        with _first_on_path(Path.cwd()):
            try:
                return importlib.import_module(place)
            except ModuleNotFoundError as error:
                raise SettingsError(f"there is no module {place} ({error}); write a file as path/to/file.py") from error
    path = Path(place)
    if not path.is_file():
        raise SettingsError(f"there is no file {place}{did_you_mean_file(path, '*.py')}")
    # Dataclasses and pickle look a module up by its name. The file may have the name of a loaded module.
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of cs-plan"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _first_on_path(path.parent.resolve()):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _params_of(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    from cerebras_tensorflow.config.params_file import read_params

    return read_params(path)


if __name__ == "__main__":
    sys.exit(main())
