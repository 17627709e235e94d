"""run(): the command line of a model, from argv and params.yaml to train, evaluate, predict or compile.

A model brings its sections (settings), a model_fn and its input_fns; this module brings the options, the checks, the
files in model_dir and the estimator. It imports TensorFlow only after it has checked options and settings.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cerebras_tensorflow import command_line
from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.params_file import read_params
from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.errors import CerebrasError, CheckpointError, SettingsError
from cerebras_tensorflow.locations import checkpoint_location
from cerebras_tensorflow.saver import integrity
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, is_complete, open_checkpoint
from cerebras_tensorflow.saver.model_dir import uploads
from cerebras_tensorflow.sparsity.configure import configure
from cerebras_tensorflow.text import is_number
from reference_implementations.common import cluster, global_batch
from reference_implementations.common.sections import MODES, TRAINING_MODES, RunSettings
from reference_implementations.common.settings import check_section, check_sections, write_yaml

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9000
# Keys of an input section that name files; a relative path in a params file is relative to that file.
PATH_KEYS = ("data_file", "data_dir")
INPUT_SECTIONS = ("train_input", "eval_input", "predict_input")
EXIT_USAGE = 2

Function = Callable[..., Any] | str


@dataclasses.dataclass(frozen=True)
class ReferenceModel:
    """The parts of a model that run() needs.

    A function may be given as 'package.module:name'; run() then imports it after it has checked the settings.
    """

    sections: Mapping[str, type]
    model_fn: Function
    train_input_fn: Function
    eval_input_fn: Function
    predict_input_fn: Function | None = None

    def read_params(self, path: str) -> dict[str, Any]:
        """Return the checked sections of a params file, without any options of a command line.

        Raises:
            SettingsError: As load_params.
        """
        return load_params(argparse.Namespace(params=path, model_dir="model_dir"), self.sections)

    def input_fn(self, mode: str, synthetic: bool = False) -> Callable[..., Any]:
        """Return the input_fn of the Estimator's mode: "train", "eval" or "infer".

        Args:
            mode: The mode.
            synthetic: Whether its batches are random values, with the shapes of the data.
        """
        if mode == "infer" and self.predict_input_fn is not None:
            section, function = "predict_input", self.predict_input_fn
        else:
            section = "train_input" if mode == "train" else "eval_input"
            function = self.train_input_fn if mode == "train" else self.eval_input_fn
        called = global_batch.without_size(_import(function))
        if not synthetic:
            return called
        from reference_implementations.common.data.synthetic import synthetic_input_fn

        return synthetic_input_fn(called, section)


def run(model: ReferenceModel, argv: Sequence[str] | None = None) -> int:
    """Run the command line of a model.

    Args:
        model: The model.
        argv: Options; by default those of this process.

    Returns:
        Exit status: 0; 1 if the run failed, with a message that gives the reason; 2 for a mistake in options or
        settings.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:tensorflow:%(message)s")
    program = Path(sys.argv[0]).name

    def checked() -> int:
        return command_line.exit_code(program, execute, errors=(SettingsError,), failure=EXIT_USAGE)

    def execute() -> int:
        options = _parser().parse_args(argv)
        options.model_dir = checkpoint_location(options.model_dir)
        params = load_params(options, model.sections)
        if env.is_check_only():
            return 0
        _check_model_dir(options.model_dir)
        _execute(model, params, options)
        return 0

    return command_line.exit_code(program, checked, errors=(CerebrasError,))


def load_params(options: argparse.Namespace, sections: Mapping[str, type]) -> dict[str, Any]:
    """Return the checked sections as plain values; options override keys of the `runconfig` section.

    Raises:
        SettingsError: As `common.settings` has it; also when both steps and max_steps are asked for.
    """
    path = Path(options.params)
    content = read_params(path)
    sparsity = content.pop("sparsity", None)
    overrides = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(RunSettings)
        if getattr(options, field.name, None) is not None
    }
    runconfig = content.get("runconfig") or {}
    if not isinstance(runconfig, dict):
        raise SettingsError(f"{path}: section 'runconfig' must hold keys and values, found {runconfig!r}")
    if "steps" in overrides and "max_steps" not in overrides:
        runconfig = {key: value for key, value in runconfig.items() if key != "max_steps"}
    if "max_steps" in overrides and "steps" not in overrides:
        runconfig = {key: value for key, value in runconfig.items() if key != "steps"}
    content = {**content, "runconfig": {**runconfig, **overrides}}
    global_batch_size = global_batch.take(content)
    checked = check_sections(content, sections, str(path), {"runconfig": tuple(overrides)})
    _check_sparsity(sparsity, checked["runconfig"], path)
    params: dict[str, Any] = {name: _plain(dataclasses.asdict(section)) for name, section in checked.items()}
    for name in INPUT_SECTIONS:
        for key in PATH_KEYS:
            if params.get(name, {}).get(key):
                params[name][key] = _resolve(params[name][key], path.parent)
        if global_batch_size is not None and name == "train_input":
            params[name][global_batch.KEY] = global_batch_size
        if "micro_batch_size" in overrides and name in params:
            params[name]["micro_batch_size"] = overrides["micro_batch_size"]
    if sparsity is not None:
        params["sparsity"] = sparsity
    params["runconfig"]["cs_ip"] = with_port(params["runconfig"]["cs_ip"])
    params["runconfig"]["model_dir"] = str(options.model_dir)
    return params


def with_port(address: str | None) -> str | None:
    """Return an address with a port; 1.4.0: cs_ip without a port means :9000."""
    if not address or is_number(address.rpartition(":")[2]):
        return address or None
    return f"{address}:{DEFAULT_PORT}"


def _check_sparsity(section: Any, settings: RunSettings, path: Path) -> None:
    try:
        groups = configure(section)
        last_step = settings.max_steps or settings.steps  # a run that resumes for `steps` ends later
        if groups is not None and last_step is not None and settings.mode in TRAINING_MODES:
            groups.check_end(last_step)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _plain(value: Any) -> Any:
    """Return a value with tuples as lists at every depth, because YAML has no tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _resolve(path: str | list[str], folder: Path) -> str | list[str]:
    if isinstance(path, list):
        return [str(_resolve(item, folder)) for item in path]
    return os.path.normpath(os.path.join(folder.resolve(), path))


def _check_model_dir(model_dir: str) -> None:
    try:
        path = uploads.begin(model_dir)
    except OSError as exc:
        raise SettingsError(f"cannot make model_dir {model_dir!r}: {exc.strerror}") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(f"model_dir {model_dir!r} is not writable; choose another with --model_dir")


def _check_checkpoint_path(settings: RunSettings, model_dir: str) -> None:
    """Refuse a checkpoint_path that cannot be read; say when the mode does not use it.

    Raises:
        SettingsError: If it cannot be read.
    """
    path = settings.checkpoint_path
    if path is None:
        return
    if not (Path(path) / "saved_model.pb").is_file():
        try:
            open_checkpoint(path).close()
        except CheckpointError as exc:
            raise SettingsError(f"checkpoint_path: {exc}") from exc
    newest = checkpoints_newest_first(model_dir)
    unused = ""
    if settings.mode in TRAINING_MODES and newest:
        unused = f"the run resumes from {newest[0]} in model_dir. To start from it, give another --model_dir"
    elif settings.mode == "eval_all":
        unused = "eval_all evaluates each checkpoint in model_dir. To evaluate it, use the mode eval"
    if unused:
        logger.warning("checkpoint_path %s is not used: %s.", path, unused)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(description="Train or evaluate a model on the simulated CS-2.", allow_abbrev=False)
    parser.add_argument("-p", "--params", required=True, help="params.yaml of the model")
    parser.add_argument("-m", "--mode", choices=MODES, help="what to do (default: runconfig, else train)")
    parser.add_argument(
        "-o", "--model_dir", default="model_dir", help="folder or URL (s3://, gs://, az://) where everything is written"
    )
    parser.add_argument("--cs_ip", help=f"address of the CS system; without a port: {DEFAULT_PORT}")
    parser.add_argument("--steps", type=int, help="train that many steps from where the run starts")
    parser.add_argument("--max_steps", type=int, help="train until this global step")
    parser.add_argument("--eval_steps", type=int, help="batches to evaluate; 0: until the data ends")
    parser.add_argument("--checkpoint_path", help="checkpoint to start from, if model_dir has none, or to evaluate")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--validate_only", action="store_true", help="check that the mode supports the model; no run")
    what.add_argument("--compile_only", action="store_true", help="compile; no run")
    parser.add_argument("--memory_budget", help="most memory that the process may take, as in 4GB (default: no limit)")
    parser.add_argument(
        "--synthetic",
        action="store_const",
        const=True,
        help="random batches with the shapes of the data, which need not be there: to measure memory and speed",
    )
    parser.add_argument(
        "--micro_batch_size",
        type=lambda text: int(text) if is_number(text) else text,
        help="samples of a batch to compute at a time: a number, auto, none, or with --compile_only explore",
    )
    parser.add_argument(
        "--allow_oversize",
        action="store_true",
        default=None,
        help="go on with a model that does not fit on the simulated wafer",
    )
    parser.add_argument(
        "--model_summary",
        action="store_true",
        default=None,
        help="log the layers of each compiled step: shapes, parameters, operations, where each weight lives",
    )
    group = parser.add_argument_group("cluster")
    group.add_argument("--num_csx", type=int, help="CS systems that train together; each takes batches of batch_size")
    group.add_argument("--global_batch_size", type=int, help="samples of all systems in a step, instead of batch_size")
    group.add_argument(
        "--multireplica",
        action="store_true",
        default=None,
        help="let replicas on one CS system share each batch of training (pipelined mode, with --cs_ip)",
    )
    group.add_argument("--num_wgt_servers", type=int, help="weight servers")
    group.add_argument("--num_act_servers", type=int, help="activation servers")
    group.add_argument("--num_workers_per_csx", type=int, help="input workers for each CS system")
    group.add_argument("--mount_dirs", nargs="+", help="folders that every task has to see")
    group.add_argument("--python_paths", nargs="+", help="folders to search for modules on every task")
    group.add_argument("--job_labels", nargs="+", help="key=value labels of the job")
    return parser


def _execute(model: ReferenceModel, params: dict[str, Any], options: argparse.Namespace) -> None:
    settings = check_section(_without(params["runconfig"], "model_dir"), RunSettings, "runconfig", str(options.params))
    cluster.prepare(settings)
    _check_checkpoint_path(settings, options.model_dir)
    if settings.throttle_secs:
        logger.info("throttle_secs is ignored: train_and_eval evaluates once, after training")
    model_dir = options.model_dir
    is_training = settings.mode in TRAINING_MODES
    if is_training:
        params["train_input"]["skip_steps"] = steps_to_skip(
            model_dir, params["train_input"], settings, params.get("optimizer", {}).get("grad_accum_steps", 1)
        )
        if global_batch.KEY not in params["train_input"]:  # otherwise a step takes one batch
            params["train_input"]["skip_steps"] *= env.read().num_csx or settings.num_csx or 1
    write_params = functools.partial(
        write_yaml, copy.deepcopy(params), Path(work_folder(model_dir), "train", "params_train.yaml")
    )
    model_fn = _import(model.model_fn)
    train_input_fn = functools.partial(model.input_fn("train", settings.synthetic), params)
    eval_input_fn = functools.partial(model.input_fn("eval", settings.synthetic), params)
    estimator = _make_estimator(model_fn, params, settings, model_dir, write_params)
    if options.validate_only or options.compile_only:
        mode = "train" if is_training else "infer" if settings.mode == "predict" else "eval"
        input_fn = functools.partial(model.input_fn(mode, settings.synthetic), params)
        estimator.compile(input_fn, validate_only=options.validate_only, mode=mode)
        if is_training:
            write_params()
        return
    eval_steps = settings.eval_steps or None
    if is_training:
        _train(estimator, train_input_fn, settings)
    if settings.mode in ("eval", "train_and_eval"):
        checkpoint = settings.checkpoint_path if settings.mode == "eval" else None
        estimator.evaluate(eval_input_fn, steps=eval_steps, checkpoint_path=checkpoint)
    elif settings.mode == "eval_all":
        for checkpoint in all_checkpoints(model_dir):
            estimator.evaluate(eval_input_fn, steps=eval_steps, checkpoint_path=checkpoint)
    elif settings.mode == "predict":
        predict_input_fn = functools.partial(model.input_fn("infer", settings.synthetic), params)
        save_predictions(estimator, predict_input_fn, settings, model_dir)


def _train(estimator: Any, input_fn: Callable[..., Any], settings: RunSettings) -> None:
    from cerebras_tensorflow.estimator.training.hooks import NanLossError

    try:
        estimator.train(input_fn, steps=settings.steps, max_steps=settings.max_steps)
    except NanLossError as exc:
        # It is TensorFlow's class. Its message has the step and the last good checkpoint, so hide the traceback.
        raise CerebrasError(str(exc)) from exc


def steps_to_skip(
    model_dir: str, train_input: Mapping[str, Any], settings: RunSettings, grad_accum_steps: int = 1
) -> int:
    """Return how many batches earlier runs in this model_dir have trained on; 0 if their order is not fixed."""
    is_ordered = not train_input.get("shuffle") or train_input.get("shuffle_seed") is not None
    if settings.disable_input_pipeline_ckpt or not is_ordered:
        return 0
    for checkpoint in checkpoints_newest_first(model_dir):
        if integrity.find_damage(checkpoint) is None:
            with open_checkpoint(checkpoint) as reader:
                updates = int(reader.read("global_step")) if "global_step" in reader else 0
                # A run that stopped between two updates has already accumulated batches for the next one.
                begun = int(reader.read("accum_step_counter")) if "accum_step_counter" in reader else 0
                return updates * grad_accum_steps + begun
    return 0


def all_checkpoints(model_dir: str) -> list[str]:
    """Return the complete checkpoints of a model_dir, oldest first.

    Raises:
        SettingsError: If there is none.
    """
    found = [path for path in reversed(checkpoints_newest_first(model_dir)) if is_complete(path)]
    if not found:
        raise SettingsError(f"no checkpoint in model_dir {model_dir!r}; train first, or give another --model_dir")
    return found


def save_predictions(estimator: Any, input_fn: Callable[..., Any], settings: RunSettings, model_dir: str) -> str:
    """Write predictions to `<model_dir>/predictions.npz`, one array for each name; return the path."""
    import numpy as np

    batches = estimator.predict(input_fn, checkpoint_path=settings.checkpoint_path, yield_single_examples=False)
    columns: dict[str, list[Any]] = {}
    for number, batch in enumerate(batches, start=1):
        values = batch if isinstance(batch, Mapping) else {"predictions": batch}
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
        if number == settings.eval_steps:
            break
    arrays: dict[str, Any] = {name: np.concatenate(values) for name, values in columns.items()}
    np.savez(os.path.join(work_folder(model_dir), "predictions.npz"), **arrays)
    uploads.upload(model_dir)
    path = os.path.join(model_dir, "predictions.npz")
    logger.info("Predictions saved in: %s", path)
    return path


def _make_estimator(
    model_fn: Callable[..., Any],
    params: dict[str, Any],
    settings: RunSettings,
    model_dir: str,
    write_params: Callable[[], None],
) -> Any:
    from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
    from cerebras_tensorflow.compat.messages import FullConfig

    class ReferenceEstimator(CerebrasEstimator):
        """Writes the params before the first step of training, so a refused run leaves no file."""

        _cs_on_ready = staticmethod(write_params)

    read_once = {} if settings.read_once is None else {"read_once": settings.read_once}
    given: dict[str, Any] = {
        "memory_budget": settings.memory_budget,
        "micro_batch_size": settings.micro_batch_size,
        "allow_oversize": settings.allow_oversize,
        "model_summary": settings.model_summary,
        "op_profiler_config": settings.op_profiler_config,
        "num_csx": settings.num_csx,
        "max_wgt_servers": settings.num_wgt_servers,
        "max_act_per_csx": settings.num_act_servers,
        "num_workers_per_csx": settings.num_workers_per_csx,
        "mount_dirs": list(settings.mount_dirs),
        "python_paths": list(settings.python_paths),
        "job_labels": list(settings.job_labels),
    }
    config = CSRunConfig(
        cs_ip=settings.cs_ip,
        stack_params={"config": FullConfig(target_num_replicas=-1)} if settings.multireplica else None,
        cs_config=CSConfig(**params["csconfig"] | {name: value for name, value in given.items() if value} | read_once),
        tf_random_seed=settings.tf_random_seed,
        save_checkpoints_steps=None if settings.save_checkpoints_secs else settings.save_checkpoints_steps,
        save_checkpoints_secs=settings.save_checkpoints_secs,
        keep_checkpoint_max=settings.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=settings.keep_checkpoint_every_n_hours,
        checkpoint_format=settings.checkpoint_format,
        save_summary_steps=settings.save_summary_steps,
        log_step_count_steps=settings.log_step_count_steps,
    )
    warm_start = settings.checkpoint_path if settings.mode in TRAINING_MODES else None
    return ReferenceEstimator(model_fn, model_dir=model_dir, config=config, params=params, warm_start_from=warm_start)


def _import(function: Function) -> Callable[..., Any]:
    if callable(function):
        return function
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
