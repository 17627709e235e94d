"""The table of compatibility imports: where old code imports each name from, and what the name is here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FULL = "full"
NOTED = "accepted and noted"
ABSENT = "absent"

WHEEL = "wheel"
CBCORE = "cbcore"
WS = "ws"
TENSORFLOW = "tensorflow"
ROOTS = {
    WHEEL: "always",
    CBCORE: "in a script that csrun_wse or csrun_cpu started",
    WS: "in a script that python-ws started",
    TENSORFLOW: "with this package installed or imported, unless TensorFlow has a tf.estimator of its own",
}
"""Root -> when its names can be imported."""


@dataclass(frozen=True)
class Name:
    """One name of the table.

    Attributes:
        module: Module that old code imports it from.
        name: The name in it; "" for the module itself.
        home: The object that it is here: "package.module:attribute.path"; "" for a module, or if absent.
        root: One of ROOTS.
        releases: Releases that have it.
        status: FULL, NOTED or ABSENT.
        note: What a user should know.
    """

    module: str
    name: str
    home: str
    root: str
    releases: str
    status: str = FULL
    note: str = ""


_OURS = "cerebras_tensorflow.estimator."
_COMPAT = "cerebras_tensorflow.compat."
_ESTIMATOR_PACKAGE = "tensorflow_estimator.python.estimator"


def _group(
    module: str, root: str, releases: str, home: str, names: str, status: str = FULL, note: str = ""
) -> list[Name]:
    """Return the rows of one module. `names` are separated by spaces; "old=new" if the name in `home` differs."""
    rows = []
    for item in names.split():
        name, _, attribute = item.partition("=")
        rows.append(Name(module, name, f"{home}:{attribute or name}", root, releases, status, note))
    return rows


def _both_protobuf_namespaces() -> Iterator[Name]:
    """The settings messages: cerebras.pb and cerebras_appliance.pb."""
    messages = _COMPAT + "messages"
    no_effect = "kept and readable; the simulated system has no use for it"
    files = (
        ("common.tri_state_pb2", "TriState TS_UNSPECIFIED TS_ENABLED TS_DISABLED"),
        ("common.cerebras_type_pb2", "CerebrasType T_INVALID T_F16 T_F32 T_CB16"),
        ("stack.autogen_pb2", "AutogenPolicy AutogenConfig AP_UNSPECIFIED AP_DISABLED AP_ENABLED"),
        ("stack.full_pb2", "FullConfig"),
        ("tf.csconfig_pb2", "CSConfig"),
    )
    for namespace, root, releases in (("cerebras.pb", CBCORE, "1.2-1.7"), ("cerebras_appliance.pb", WHEEL, "1.6-1.8")):
        for file, names in files:
            yield from _group(f"{namespace}.{file}", root, releases, messages, names, NOTED, no_effect)
    for file, releases in (("client", "1.6"), ("workflow.appliance.common", "1.7-1.8")):
        names = "ExecutionStrategy ES_UNSPECIFIED ES_PIPELINE ES_WEIGHT_STREAMING"
        module = f"cerebras_appliance.pb.{file}.common_config_pb2"
        yield from _group(module, WHEEL, releases, messages, names)
        yield from _group(module, WHEEL, releases, messages, "DebugArgs", NOTED, no_effect)


_SUMMARIES = "cs1_enable_summaries cs1_disable_summaries"
_CASTS = "boundary_cast summarize_tensor summary_layer"
_CASTS_NOTE = "boundary_cast returns its input; the others add a scalar summary of the norm"


def _cerebras() -> Iterator[Name]:
    """The container's package cerebras, without cerebras.pb."""
    yield Name("cerebras.framework", "", "", CBCORE, "1.2-1.7", FULL, "scripts of 1.7 check whether it can be found")
    yield from _group("cerebras.tf.cs_estimator", CBCORE, "1.2-1.7", _OURS + "estimator", "CerebrasEstimator")
    yield from _group("cerebras.tf.ws.cs_estimator_ws", CBCORE, "1.2-1.7", _OURS + "estimator", "CerebrasEstimator")
    yield from _group("cerebras.tf.run_config", CBCORE, "1.2-1.7", _COMPAT + "run_configs", "CSRunConfig")
    yield from _group("cerebras.tf.cs_estimator_spec", CBCORE, "1.2-1.7", _OURS + "spec", "CSEstimatorSpec")
    yield from _group(
        "cerebras.tf.host_call", CBCORE, "1.2-1.7", _OURS + "host_call",
        "host_call_to_eval_metric_ops validate_host_call",
    )  # fmt: skip
    yield from _group("cerebras.tf.summary", CBCORE, "1.2-1.7", _OURS + "summaries", _SUMMARIES)
    yield from _group("cerebras.tf.tf_helper", CBCORE, "1.2-1.7", _COMPAT + "tf_helper", _CASTS, NOTED, _CASTS_NOTE)
    yield from _group("cerebras.tf.tf_helper", CBCORE, "1.6", _COMPAT + "tf_helper", "GetWeights")
    yield Name(
        "cerebras.tf.tf_helper", "CS_AUTOTUNE", _COMPAT + "tf_helper:CS_AUTOTUNE", CBCORE, "0.8-1.7", FULL,
        "tf.data.AUTOTUNE; the original's module is not published",
    )  # fmt: skip
    yield from _group(
        "cerebras.tf.ws.ws_sparsify", CBCORE, "1.6", _COMPAT + "sparsify",
        "SPARSIFIER_MAP get_AdamW_aware_sparsifier_class",
        FULL, "keys as in 1.7 (1.6 is not published); topk and balanced-topk choose once, set, gmp, rigl again",
    )  # fmt: skip
    yield from _group(
        "cerebras.tf.cs_slurm_cluster_resolver", CBCORE, "0.x-1.1", _COMPAT + "slurm_resolver",
        "CSSlurmClusterResolver",
    )  # fmt: skip
    yield Name(
        "cerebras.tf.cs_model_to_estimator", "KerasModelToCerebrasEstimator",
        _OURS + "keras_model:KerasModelToCerebrasEstimator", CBCORE, "0.x-1.1", FULL,
        "takes the arguments of model_to_estimator; the original's are not published",
    )  # fmt: skip


def _cerebras_tensorflow() -> Iterator[Name]:
    """The appliance's package cerebras_tensorflow: modules that this port's own package lacks."""
    yield from _group(
        "cerebras_tensorflow.cs_estimator_app", WHEEL, "1.6-1.8", _COMPAT + "app_estimator", "CerebrasAppEstimator"
    )
    yield from _group("cerebras_tensorflow.cs_estimator_spec", WHEEL, "1.7-1.8", _OURS + "spec", "CSEstimatorSpec")
    yield from _group("cerebras_tensorflow.graph_extraction", WHEEL, "1.7-1.8", _OURS + "summaries", _SUMMARIES)
    yield from _group(
        "cerebras_tensorflow.summary", WHEEL, "1.7-1.8", _COMPAT + "tf_helper", _CASTS, NOTED, _CASTS_NOTE
    )
    reader = "cerebras_tensorflow.saver.checkpoint_reader"
    yield from _group(reader, WHEEL, "1.8", reader, "CheckpointReader")


def _cerebras_appliance() -> Iterator[Name]:
    """The appliance's package cerebras_appliance, without cerebras_appliance.pb."""
    yield from _group("cerebras_appliance", WHEEL, "1.7-1.8", _COMPAT + "appliance", "DEFAULT_COMPILE_DIR")
    yield from _group("cerebras_appliance.CSConfig", WHEEL, "1.6-1.8", _OURS + "config.cs_config", "CSConfig")
    yield from _group(
        "cerebras_appliance.cs_run_config", WHEEL, "1.6-1.8", _COMPAT + "run_configs", "CSRunConfig=ApplianceRunConfig"
    )
    yield from _group(
        "cerebras_appliance.environment", WHEEL, "1.8", _COMPAT + "appliance", "appliance_environ",
        NOTED, "one process plays all roles, so this is its own os.environ",
    )  # fmt: skip
    yield from _group(
        "cerebras_appliance.run_utils", WHEEL, "1.7-1.8", _COMPAT + "appliance",
        "get_debug_args write_debug_args",
    )  # fmt: skip
    yield from _group(
        "cerebras_appliance.run_utils", WHEEL, "1.8", _COMPAT + "appliance", "update_debug_args_with_autogen_policy",
        NOTED, "returns its input; the simulated system has no placement to steer",
    )  # fmt: skip
    yield from _group(
        "cerebras_appliance.cluster_client",
        WHEEL,
        "1.6",
        _COMPAT + "appliance",
        "VolumeMount",
        NOTED,
        "kept; nothing is mounted",
    )
    for name in ("TensorGroup", "TensorGrouper", "TensorSendPayload"):
        yield Name(
            "cerebras_appliance.appliance_manager", name, "", WHEEL, "1.7-1.8", ABSENT,
            "only PyTorch code uses it; its behaviour is not published",
        )  # fmt: skip


_HOOKS = (
    "CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook GlobalStepWaiterHook LoggingTensorHook "
    "NanLossDuringTrainingError NanTensorHook ProfilerHook SecondOrStepTimer SessionRunArgs SessionRunContext "
    "SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook"
)
_EARLY_STOPPING = (
    "make_early_stopping_hook stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
)
_EXPORTERS = "Exporter BestExporter FinalExporter LatestExporter"
_RECEIVERS = (
    "ServingInputReceiver TensorServingInputReceiver build_parsing_serving_input_receiver_fn "
    "build_raw_serving_input_receiver_fn"
)
_OTHER_RECEIVERS = "SupervisedInputReceiver UnsupervisedInputReceiver"
_OUTPUTS = "ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput"
_CANNED = {
    "baseline": "BaselineClassifier BaselineEstimator BaselineRegressor",
    "dnn": "DNNClassifier DNNEstimator DNNRegressor",
    "dnn_linear_combined": "DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor",
    "linear": "LinearClassifier LinearEstimator LinearRegressor",
}
"""Module of the wheel -> its estimators. In the wheel, the names of the TensorFlow 2 estimators end in V2."""
_PARSING = ("classifier_parse_example_spec", "regressor_parse_example_spec")
_HEADS = {
    "base_head": "Head",
    "binary_class_head": "BinaryClassHead",
    "multi_class_head": "MultiClassHead",
    "multi_head": "MultiHead",
    "multi_label_head": "MultiLabelHead",
    "regression_head": "LogisticRegressionHead PoissonRegressionHead RegressionHead",
}
_BOOSTED_TREES = "BoostedTreesClassifier BoostedTreesEstimator BoostedTreesRegressor"
_BOOSTED_TREES_NOTE = "removed in TensorFlow 2.9; TensorFlow Decision Forests (tensorflow_decision_forests) replaces it"
_WHEEL_NOTE = "from the wheel tensorflow-estimator 2.15, on our Estimator, with Keras 2"
_SUPERVISED = "build_raw_supervised_input_receiver_fn"
_TPU = {
    _COMPAT + "tpu": "RunConfig TPUEstimator",
    _COMPAT + "tpu_spec": "TPUEstimatorSpec",
    _ESTIMATOR_PACKAGE + ".tpu.tpu_config": "InputPipelineConfig TPUConfig",
}


def _estimator_api(module: str, is_v1: bool) -> Iterator[Name]:
    """The names of tf.estimator, in one of the modules that export it."""
    releases = "TensorFlow 1.x-2.15" if is_v1 else "TensorFlow 2.0-2.15"

    def group(home: str, names: str, submodule: str = "") -> list[Name]:
        return _group(module + submodule, TENSORFLOW, releases, home, names)

    yield from group(_OURS + "tf_estimator", "Estimator" if is_v1 else "Estimator=EstimatorV2")
    yield from group(_OURS + "spec", "EstimatorSpec")
    yield from group(_OURS + "mode_keys", "ModeKeys")
    yield from group(_OURS + "config.run_config", "RunConfig")
    yield from group(_OURS + "training.warm_start", "WarmStartSettings")
    yield from group(_OURS + "train_and_evaluate", "TrainSpec EvalSpec train_and_evaluate")
    yield from group(_OURS + "export.exporters", _EXPORTERS)
    yield from group("tensorflow", " ".join(f"{name}=compat.v1.train.{name}" for name in f"{_HOOKS} VocabInfo".split()))
    yield from group(_OURS + "add_metrics", "add_metrics")
    yield from group(_OURS + "add_metrics", "call_logit_fn", ".experimental")
    yield from group(
        _OURS + "training.early_stopping", f"{_EARLY_STOPPING} make_stop_at_checkpoint_step_hook", ".experimental"
    )
    yield from group(_OURS + "in_memory_evaluator", "InMemoryEvaluatorHook", ".experimental")
    yield from group(_OURS + "export.saved_model", _SUPERVISED, ".experimental")
    yield from group(_OURS + "export.saved_model", _RECEIVERS, ".export")
    yield from group(_OURS + "export.export_outputs", _OUTPUTS, ".export")
    if is_v1:
        yield from group(_OURS + "model.array_inputs", "numpy_input_fn pandas_input_fn", ".inputs")
    yield from _from_wheel(module, is_v1, releases)
    for name in _BOOSTED_TREES.split():
        yield Name(module, name, "", TENSORFLOW, "TensorFlow 1.x-2.8", ABSENT, _BOOSTED_TREES_NOTE)
    for home, names in _TPU.items() if is_v1 else ():
        yield from _group(f"{module}.tpu", TENSORFLOW, releases, home, names, FULL, "with use_tpu=False")
    if is_v1:
        home = f"{_ESTIMATOR_PACKAGE}.tpu._tpu_estimator_embedding"
        note = "from the wheel tensorflow-estimator 2.15; its embeddings need a TPU"
        yield from _group(f"{module}.tpu.experimental", TENSORFLOW, releases, home, "EmbeddingConfigSpec", FULL, note)


def _from_wheel(module: str, is_v1: bool, releases: str) -> Iterator[Name]:
    """The canned estimators and heads of tf.estimator. The wheel implements them, on our Estimator."""
    version = "" if is_v1 else "V2"

    def group(home: str, names: Iterable[str], submodule: str = "") -> list[Name]:
        where = f"{_ESTIMATOR_PACKAGE}.{home}"
        return _group(module + submodule, TENSORFLOW, releases, where, " ".join(names), FULL, _WHEEL_NOTE)

    for home, names in _CANNED.items():
        yield from group(f"canned.{home}", (f"{name}={name}{version}" for name in names.split()))
    yield from group("canned.parsing_utils", (f"{name}={name}{version and '_v2'}" for name in _PARSING))
    for home, names in _HEADS.items():
        yield from group(f"head.{home}", names.split())
    yield from group("canned.linear", ["LinearSDCA"], ".experimental")
    if is_v1:
        yield from group("canned.kmeans", ["KMeans=KMeansClustering"], ".experimental")
        yield from group("canned.dnn", ["dnn_logit_fn_builder"], ".experimental")
        yield from group("canned.linear", ["linear_logit_fn_builder"], ".experimental")
    else:
        yield from group("canned.rnn", ["RNNClassifier", "RNNEstimator"], ".experimental")


def _estimator_modules() -> Iterator[Name]:
    """The modules of the tensorflow_estimator package that scripts import from."""
    base = f"{_ESTIMATOR_PACKAGE}."
    for module, home, names in (
        ("estimator", _OURS + "tf_estimator", "Estimator EstimatorV2"),
        ("estimator", _COMPAT + "wheel_parts", "_canned_estimator_api_gauge"),
        ("estimator_export", _COMPAT + "wheel_parts", "estimator_export"),
        ("tpu.tpu_config", _COMPAT + "tpu", "RunConfig"),
        ("tpu.tpu_estimator", _COMPAT + "tpu", "RunConfig TPUEstimator"),
        ("tpu.tpu_estimator", _COMPAT + "tpu_spec", "TPUEstimatorSpec"),
        ("estimator", _OURS + "training.warm_start", "WarmStartSettings"),
        ("model_fn", _OURS + "spec", "EstimatorSpec"),
        ("model_fn", _OURS + "mode_keys", "ModeKeys"),
        ("mode_keys", _OURS + "mode_keys", "ModeKeys"),
        ("run_config", _OURS + "config.run_config", "RunConfig"),
        ("training", _OURS + "train_and_evaluate", "TrainSpec EvalSpec train_and_evaluate"),
        ("exporter", _OURS + "export.exporters", _EXPORTERS),
        ("extenders", _OURS + "add_metrics", "add_metrics"),
        ("early_stopping", _OURS + "training.early_stopping", _EARLY_STOPPING),
        ("early_stopping", _OURS + "training.early_stopping", "_CheckForStoppingHook _StopOnPredicateHook"),
        ("hooks.hooks", _OURS + "in_memory_evaluator", "InMemoryEvaluatorHook"),
        (
            "hooks.hooks",
            _OURS + "training.early_stopping",
            "make_stop_at_checkpoint_step_hook _StopAtCheckpointStepHook",
        ),
        ("export.export", _OURS + "export.saved_model", f"{_RECEIVERS} {_OTHER_RECEIVERS} {_SUPERVISED}"),
        ("export.export_lib", _OURS + "export.saved_model", _RECEIVERS),
        ("export.export_lib", _OURS + "export.export_outputs", _OUTPUTS),
        ("export.export_output", _OURS + "export.export_outputs", _OUTPUTS),
        ("inputs.inputs", _OURS + "model.array_inputs", "numpy_input_fn pandas_input_fn"),
        ("inputs.numpy_io", _OURS + "model.array_inputs", "numpy_input_fn"),
        ("inputs.pandas_io", _OURS + "model.array_inputs", "pandas_input_fn"),
        ("estimator_lib", _OURS + "tf_estimator", "Estimator"),
        ("estimator_lib", _OURS + "spec", "EstimatorSpec"),
        ("estimator_lib", _OURS + "mode_keys", "ModeKeys"),
        ("estimator_lib", _OURS + "config.run_config", "RunConfig"),
        ("estimator_lib", _OURS + "train_and_evaluate", "TrainSpec EvalSpec train_and_evaluate"),
        ("estimator_lib", _OURS + "training.early_stopping", "read_eval_metrics"),
    ):
        yield from _group(base + module, TENSORFLOW, "TensorFlow 1.13-2.15", home, names)


_MOVED = {
    "tensorflow.python.estimator.keras": f"{_ESTIMATOR_PACKAGE}.keras_lib",
    **{
        f"tensorflow.python.tpu.{module}": f"{_ESTIMATOR_PACKAGE}.tpu.{module}"
        for module in ("error_handling", "tpu_config", "tpu_context", "tpu_estimator", "util")
    },
    "tensorflow.python.training.training_ops": "tensorflow.python.ops.gen_training_ops",
    "tensorflow.python.training.gen_training_ops": "tensorflow.python.ops.gen_training_ops",
    "tensorflow.python.training.tracking.base": "tensorflow.python.trackable.base",
    "tensorflow.python.training.tracking.data_structures": "tensorflow.python.trackable.data_structures",
    "tensorflow.python.training.tracking.graph_view": "tensorflow.python.checkpoint.graph_view",
    "tensorflow.python.training.tracking.layer_utils": "tensorflow.python.trackable.layer_utils",
    "tensorflow.python.training.tracking.python_state": "tensorflow.python.trackable.python_state",
    "tensorflow.python.training.tracking.tracking": "tensorflow.python.trackable.autotrackable",
    "tensorflow.python.training.tracking.util": "tensorflow.python.checkpoint.checkpoint",
    "tf_keras.legacy_tf_layers": "tf_keras.src.legacy_tf_layers",  # tensorflow.python.layers.normalization imports it
}
"""Private module that public programs import -> where its names are now."""

_NO_COORDINATOR = (
    "a TF_CONFIG cluster runs without the distribute coordinator: call tf.estimator.train_and_evaluate on each task"
)

ALIASES = {**_MOVED, "tensorflow.python.estimator": _ESTIMATOR_PACKAGE}
"""Module or package of older TensorFlow -> the one that has its names now: old imports, of submodules too, work."""

ESTIMATOR_MODULES = {
    "tensorflow.estimator": False,
    "tensorflow.compat.v1.estimator": True,
    "tensorflow.compat.v2.estimator": False,
    "tensorflow_estimator._api.v1.estimator": True,
    "tensorflow_estimator._api.v2.estimator": False,
    "tensorflow_estimator.python.estimator.api._v1.estimator": True,
    "tensorflow_estimator.python.estimator.api._v2.estimator": False,
}
"""Module that exports the estimator API -> whether it is the API of TensorFlow 1."""

TABLE: tuple[Name, ...] = (
    *_cerebras(),
    Name("tfwse", "", "", WS, "1.4-1.8", FULL, "scripts import it to find out whether they run in weight streaming"),
    *_cerebras_tensorflow(),
    *_cerebras_appliance(),
    *_both_protobuf_namespaces(),
    *(name for module, is_v1 in ESTIMATOR_MODULES.items() for name in _estimator_api(module, is_v1)),
    *_estimator_modules(),
    *_group("tensorflow_estimator", TENSORFLOW, "TensorFlow 1.13-2.15", "tensorflow_estimator._api.v1", "estimator"),
    *_group(
        f"{_ESTIMATOR_PACKAGE}.api",
        TENSORFLOW,
        "TensorFlow 1.13-2.15",
        "tensorflow_estimator.python.estimator.api._v2",
        "estimator",
    ),
    Name(
        "tensorflow.python.tpu.async_checkpoint",
        "AsyncCheckpointSaverHook",
        "tensorflow.python.training.basic_session_run_hooks:CheckpointSaverHook",
        TENSORFLOW,
        "TensorFlow 1.13-2.15",
        FULL,
        "saves between two steps, not beside them",
    ),
    *(
        Name(
            "tensorflow.python.distribute.estimator_training",
            name,
            "",
            TENSORFLOW,
            "TensorFlow 1.13-2.15",
            ABSENT,
            _NO_COORDINATOR,
        )
        for name in ("estimator_evaluate", "estimator_train", "init_run_config", "train_and_evaluate")
    ),
    *(Name(old, "", "", TENSORFLOW, "TensorFlow 1.x-2.15", FULL, f"now `{new}`") for old, new in _MOVED.items()),
    Name(
        "tensorflow.keras.estimator",
        "model_to_estimator",
        _OURS + "keras_model:model_to_estimator",
        TENSORFLOW,
        "TensorFlow 1.4-2.15",
        FULL,
        "for Keras 2 models; tf.keras is Keras 2 in a script that csrun_wse or csrun_cpu started",
    ),
)
