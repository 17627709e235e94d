"""CerebrasEstimator: train, evaluate, predict and compile a model_fn, pipelined or by weight streaming."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.estimator.arguments import check_hooks, check_steps, check_training, make_model_dir
from cerebras_tensorflow.estimator.compile_only import CompileRequest, compile_only
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig, RunConfig
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.distributed import evaluation as distributed_evaluation
from cerebras_tensorflow.estimator.distributed import training as distributed_training
from cerebras_tensorflow.estimator.distributed.strategies import check_no_system
from cerebras_tensorflow.estimator.evaluation import prediction as prediction_run
from cerebras_tensorflow.estimator.evaluation import run as evaluation_run
from cerebras_tensorflow.estimator.execution import restrictions
from cerebras_tensorflow.estimator.execution.several_csx import check_inference, check_settings, num_csx_of
from cerebras_tensorflow.estimator.execution.target import Target, choose_target, held
from cerebras_tensorflow.estimator.export import saved_model as export
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import call_for_spec
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training import run as training_run
from cerebras_tensorflow.estimator.training.request import TrainingRequest
from cerebras_tensorflow.estimator.training.sparsity.caller_sparsifier import choice_of
from cerebras_tensorflow.estimator.training.warm_start import checkpoint_of, warm_start_settings
from cerebras_tensorflow.estimator.uploads import tell_where_results_are
from cerebras_tensorflow.estimator.user_functions import parameters_of
from cerebras_tensorflow.locations import checkpoint_location, local_path, object_location
from cerebras_tensorflow.logs import run_log, show_run_lines
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.model_dir.uploads import upload_export


class CerebrasEstimator:
    """Runs a model_fn. Private members begin with `_cs_`, unless tf.estimator has them, so that subclasses keep theirs.

    The interpreter decides the execution mode: `python-ws` means weight streaming, `python` pipelined. The config's
    cs_ip decides the system. In tf.nn.sparse_softmax_cross_entropy_with_logits and losses built on it, a label of -1
    (variable sequence length) gives no loss and no gradient.

    Args:
        model_fn: model_fn(features, labels, mode, params, config) -> CSEstimatorSpec or EstimatorSpec. Only features is
            required.
        model_dir: Folder of checkpoints, event files and compiled programs, or a URL (s3://, gs://, az://). Default:
            the config's, or a new temporary folder.
        compile_dir: Folder of compiled programs. Default: model_dir; for a URL, a folder in the user's cache.
        config: CSRunConfig or RunConfig.
        params: Each call of model_fn and input_fn gets a deep copy; None becomes {}.
        warm_start_from: Path or WarmStartSettings, used if model_dir has no checkpoint. A path loads all trainable
            variables that it has and logs the others.

    Raises:
        ValueError: If model_dir differs from the config's, model_fn is None, or params are given and model_fn does not
            take them.
        SettingsError: If model_dir cannot be written.
    """

    _cs_is_cerebras = True
    _cs_on_ready: Callable[[], None] | None = None  # of a subclass; a training run calls it before its first step

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        config: Any = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        config = config if config is not None else CSRunConfig()
        if not isinstance(config, RunConfig) and not hasattr(config, "save_checkpoints_steps"):
            raise ValueError(f"config must be an instance of `RunConfig`, but provided {config}.")
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator.")
        if "params" not in parameters_of(model_fn) and "**" not in parameters_of(model_fn) and params is not None:
            raise ValueError(
                f"model_fn ({model_fn}) does not include params argument, but params ({params}) is passed to Estimator."
            )
        given = checkpoint_location(model_dir) if model_dir is not None else None
        if given and config.model_dir and given != config.model_dir:
            raise ValueError(
                "`model_dir` are set both in constructor and `RunConfig`, but with different values. In constructor: "
                f"'{given}', in `RunConfig`: '{config.model_dir}' "
            )
        self._model_dir = given or config.model_dir or tempfile.mkdtemp(prefix="cs_model_dir_")
        self._config = config if config.model_dir == self._model_dir else config.replace(model_dir=self._model_dir)
        self._cs_settings = run_settings(self._config)
        self._cs_compile_dir = local_path(compile_dir) if compile_dir is not None else work_folder(self._model_dir)
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._warm_start_settings = warm_start_settings(warm_start_from, is_lenient=self._cs_is_cerebras)

    @property
    def model_dir(self) -> str:
        """Folder or URL of checkpoints and event files."""
        return self._model_dir

    @property
    def config(self) -> Any:
        """The RunConfig."""
        return self._config

    @property
    def params(self) -> Any:
        """A deep copy of the params."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model_fn as a function of features, labels, mode and config; it has the params already."""

        def public_model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
            return call_for_spec(self._model_fn, features, labels, mode, self._params, config)

        return public_model_fn

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
        sparsifier: Any = None,
    ) -> CerebrasEstimator:
        """Train from the newest undamaged checkpoint of model_dir; return self.

        Args:
            input_fn: Returns a Dataset, (features, labels), or features; may take params, mode, config.
            hooks: SessionRunHooks; not allowed in a run with cs_ip.
            steps: Number of steps to train.
            max_steps: Global step at which to stop. If both are None: until the input ends.
            saving_listeners: CheckpointSaverListeners.
            use_cs: Whether to use the config's cs_ip.
            sparsifier: The sparse weights, in place of section `sparsity` of the params: such a section, an algorithm
                of cerebras_tensorflow.sparsity, or an object with the protocol of release 1.6.

        Raises:
            ValueError: If steps and max_steps are both given, or one is not positive.
            SettingsError: If a setting of sparsity or num_csx is wrong, or MPI is missing. It comes before any write.
            NanLossDuringTrainingError: If the loss is not finite.
            SystemExit: 130 or 143 after Ctrl-C or SIGTERM, after the step has ended and is saved.
        """
        check_training(steps, max_steps, hooks, saving_listeners)
        show_run_lines()
        target = self._cs_target(use_cs, ModeKeys.TRAIN)
        sparsity = choice_of(self._params if self._cs_is_cerebras else None, sparsifier)
        if is_distributed := distributed_training.is_distributed(self._cs_settings):
            check_no_system("train_distribute", target.is_cs or num_csx_of(self._cs_settings.cs) > 1)
        else:
            check_settings(self._cs_settings.cs, self._params)
        make_model_dir(self._model_dir)
        tell_where_results_are(self._model_dir)
        request = TrainingRequest(
            model_fn=self._model_fn,
            input_fn=input_fn,
            params=self._params,
            settings=self._cs_settings,
            model_dir=self._model_dir,
            compile_dir=self._cs_compile_dir,
            warm_start=self._warm_start_settings,
            hooks=tuple(hooks or ()),
            listeners=tuple(saving_listeners or ()),
            steps=steps,
            last_step=max_steps,
            is_cerebras=self._cs_is_cerebras,
            sparsity=sparsity,
            on_ready=self._cs_on_ready,
        )
        if is_distributed:
            distributed_training.train(request)
            return self
        with held(target, f"train {self._model_dir}", num_csx_of(self._cs_settings.cs)):
            training_run.train(request, target)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
        use_cs: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics of a checkpoint: name -> value, with "loss" and "global_step".

        Args:
            input_fn: As in train.
            steps: Number of batches; None: until the input ends.
            hooks: SessionRunHooks.
            checkpoint_path: Default: the newest undamaged one of model_dir.
            name: Name of this evaluation, for its event files.
            use_cs: Whether to use the config's cs_ip.

        Raises:
            ValueError: If steps is not positive, steps is None with a cs_ip, or the input has no batch.
        """
        check_steps(steps=steps)
        check_hooks(hooks)
        show_run_lines()
        target = self._cs_target(use_cs, ModeKeys.EVAL)
        restrictions.check_evaluation_steps(self._cs_settings, target.is_cs, steps)
        check_inference(self._cs_settings.cs, self._params, ModeKeys.EVAL)
        make_model_dir(self._model_dir)
        request = self._cs_inference(input_fn, hooks, steps, checkpoint_path, name)
        if distributed_evaluation.is_distributed(self._cs_settings):
            check_no_system("eval_distribute", target.is_cs)
            return distributed_evaluation.evaluate(request)
        with held(target, f"evaluate {self._model_dir}", num_csx_of(self._cs_settings.cs)):
            return evaluation_run.evaluate(request, target)

    def _cs_evaluate_values(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any],
        name: str | None,
        load: Callable[[Any, Any], None],
    ) -> dict[str, Any]:
        """Like `evaluate`, but load(model, session) sets the variables."""
        target = self._cs_target(False, ModeKeys.EVAL)
        request = replace(self._cs_inference(input_fn, hooks, steps, None, name), load=load)
        with held(target, f"evaluate {self._model_dir}"):
            return evaluation_run.evaluate(request, target)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
        num_samples: int | None = None,
        use_cs: bool = False,
    ) -> Iterator[Any]:
        """Yield the predictions of a checkpoint, one sample at a time.

        Args:
            input_fn: Returns features, or (features, labels); labels are ignored.
            predict_keys: Keys to keep of a dict of predictions.
            hooks: SessionRunHooks.
            checkpoint_path: Default: the newest undamaged one of model_dir.
            yield_single_examples: False: yield whole batches.
            num_samples: Number of samples to yield; None: all.
            use_cs: Whether to use the config's cs_ip.
        """
        check_hooks(hooks)
        target = self._cs_target(use_cs, ModeKeys.PREDICT)
        check_inference(self._cs_settings.cs, self._params, ModeKeys.PREDICT)
        request = self._cs_inference(input_fn, hooks, None, checkpoint_path, None)
        with held(target, f"predict {self._model_dir}", num_csx_of(self._cs_settings.cs)):
            yield from prediction_run.predict(request, target, predict_keys, yield_single_examples, num_samples)

    def compile(
        self, input_fn: Callable[..., Any], validate_only: bool | None = False, mode: str = ModeKeys.TRAIN
    ) -> None:
        """Compile the model without running it. A later run reads the Program from the cache.

        With micro_batch_size "explore" it compares all sizes and recommends one.

        Args:
            input_fn: As in train.
            validate_only: Compile only to check the model; write nothing.
            mode: One of ModeKeys.
        """
        target = self._cs_target(True, mode)
        compiled = compile_only(
            CompileRequest(
                model_fn=self._model_fn,
                input_fn=input_fn,
                params=self.params,
                settings=self._cs_settings,
                mode=mode,
                execution_mode=target.mode,
                compile_dir=None if validate_only else self._cs_compile_dir,
                is_cerebras=self._cs_is_cerebras,
                sparsity=choice_of(self._params if self._cs_is_cerebras else None, None),
            )
        )
        if validate_only:
            run_log.info("Validation passed: the model compiles for %s.", target.mode)
        elif compiled.folder is None:
            raise CompileError(
                f"the model compiles, but was not saved in {self._cs_compile_dir}: see the warning above"
            )
        elif compiled.compile_s:
            run_log.info("Compiled for %s in %.2f seconds: %s", target.mode, compiled.compile_s, compiled.folder)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the folder of an evaluation's event files."""
        return os.path.join(self._model_dir, f"eval_{name}" if name else "eval")

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Write a checkpoint as a SavedModel into a new timestamped folder below export_dir_base; return its path.

        Args:
            export_dir_base: Folder or URL of the exports.
            serving_input_receiver_fn: Returns a ServingInputReceiver.
            assets_extra: Path in assets.extra -> file to copy there.
            as_text: Whether the SavedModel is text.
            checkpoint_path: Default: the newest undamaged one of model_dir.
            experimental_mode: Mode for the call of model_fn.

        Raises:
            ValueError: If there is no checkpoint, or no serving_input_receiver_fn.
        """
        if serving_input_receiver_fn is None:
            raise ValueError("An input_receiver_fn must be defined.")
        return self.experimental_export_all_saved_models(
            export_dir_base, {experimental_mode: serving_input_receiver_fn}, assets_extra, as_text, checkpoint_path
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base: str | os.PathLike[str],
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Write a checkpoint as one SavedModel with the graphs of several modes; return its path.

        Args:
            input_receiver_fn_map: Mode -> function that returns a receiver. For TRAIN and EVAL it has labels.
            export_dir_base: As in export_saved_model.
            assets_extra: As in export_saved_model.
            as_text: As in export_saved_model.
            checkpoint_path: As in export_saved_model.

        Raises:
            ValueError: If there is no checkpoint, or no receiver function.
        """
        return self._cs_export(export_dir_base, input_receiver_fn_map, assets_extra, as_text, checkpoint_path)

    def _cs_export(
        self,
        export_dir_base: str | os.PathLike[str],
        receiver_fns: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
        checkpoint_path: str | None,
        strips_defaults: bool = True,
    ) -> bytes:
        checkpoint = checkpoint_path or self.latest_checkpoint()
        if checkpoint is None and self._warm_start_settings is not None:
            checkpoint = checkpoint_of(self._warm_start_settings)
        if checkpoint is None:
            raise ValueError(f"Couldn't find trained model at {self._model_dir}.")
        request = export.ExportRequest(
            model_fn=self._model_fn,
            params=self._params,
            settings=self._cs_settings,
            checkpoint=checkpoint_location(checkpoint),
            receiver_fns=receiver_fns,
            folder=work_folder(export_dir_base),
            assets=assets_extra or {},
            as_text=as_text,
            strips_defaults=strips_defaults,
        )
        exported = export.export(request)
        url = object_location(export_dir_base)
        if url is None:
            return os.fsencode(exported)
        target = f"{url}/{os.path.basename(exported)}"
        upload_export(exported, target)
        return os.fsencode(target)

    def latest_checkpoint(self) -> str | None:
        """Return the newest undamaged checkpoint of model_dir, or None."""
        return checkpoints.newest_whole(self._model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint.

        Raises:
            ValueError: If nothing has been trained.
        """
        with open_checkpoint(self._cs_trained()) as reader:
            return list(reader.names())

    def get_variable_value(self, name: str) -> Any:
        """Return a variable's value in the newest checkpoint, a NumPy scalar for rank 0; the name may end in ":0".

        Raises:
            ValueError: If nothing has been trained.
            tf.errors.NotFoundError: If there is no such variable.
        """
        name = name.removesuffix(":0")
        with open_checkpoint(self._cs_trained()) as reader:
            if name not in reader:
                raise tf.errors.NotFoundError(
                    None, None, f"Key {name} not found in checkpoint; it has {', '.join(reader.names())}"
                )
            return reader.read(name)[()]

    def _cs_target(self, use_cs: bool, mode: str) -> Target:
        target = choose_target(self._cs_settings, use_cs)
        restrictions.check_settings(self._cs_settings, mode, target.is_cs, target.mode)
        if self._cs_is_cerebras:
            restrictions.note_params(self._params)
        return target

    def _cs_trained(self) -> str:
        if (path := self.latest_checkpoint()) is None:
            raise ValueError(f"Could not find trained model in model_dir: {self._model_dir}.")
        return path

    def _cs_inference(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> evaluation_run.InferenceRequest:
        return evaluation_run.InferenceRequest(
            model_fn=self._model_fn,
            input_fn=input_fn,
            params=self._params,
            settings=self._cs_settings,
            model_dir=self._model_dir,
            compile_dir=self._cs_compile_dir,
            warm_start=self._warm_start_settings,
            hooks=tuple(hooks or ()),
            steps=steps,
            checkpoint_path=checkpoint_location(checkpoint_path) if checkpoint_path else None,
            name=name,
            ignores_negative_labels=self._cs_is_cerebras,
        )
