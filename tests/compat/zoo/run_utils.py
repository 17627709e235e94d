"""Shared by the run scripts of all releases: params, execution mode, environment checks, resume, warm start."""

import os
import re

import tensorflow as tf
import yaml

from tests.compat.zoo.data import LENGTH, VOCABULARY


def default_params(name, folder):
    """Params of a tiny model, as a yaml file would give them."""
    section = {"data_dir": folder, "vocab_file": os.path.join(folder, "vocab.txt"), "use_multiple_workers": False}
    return {
        "train_input": {**section, "shuffle": True, "shuffle_seed": 1},
        "eval_input": dict(section),
        "model": {"name": name, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH},
        "optimizer": {
            "optimizer_type": "adamw",
            "weight_decay_rate": 0.01,
            "learning_rate": [
                {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.01, "steps": 2},
                {"scheduler": "Cosine", "initial_learning_rate": 0.01, "decay_steps": 10},
            ],
            "max_gradient_norm": 1.0,
            "loss_scaling_factor": 1.0,
        },
        "runconfig": {
            "save_checkpoints_steps": 3,
            "log_step_count_steps": 1,
            "keep_checkpoint_max": 0,
            "tf_random_seed": 1,
        },
        "csconfig": {"use_cbfloat16": False},
    }


def override(params, settings):
    """Set params from words such as model.use_vsl=true."""
    for setting in settings or ():
        path, value = setting.split("=", 1)
        section, key = path.split(".")
        params[section][key] = yaml.safe_load(value)


def save_params(params, model_dir, name="params.yaml"):
    os.makedirs(model_dir, exist_ok=True)
    with open(os.path.join(model_dir, name), "w") as file:
        yaml.safe_dump(params, file, default_flow_style=False)


def get_execution_mode():
    """Return the mode, judged by the first of three imports that succeeds."""
    try:
        import tfwse

        return "weight_streaming"
    except ImportError:
        pass
    try:
        from cerebras.tf.cs_estimator import CerebrasEstimator

        return "pipeline"
    except ImportError:
        from tensorflow_estimator.python.estimator.estimator import Estimator

        return None


def is_cs(runconfig):
    return runconfig.get("cs_ip") is not None or os.environ.get("K8S_CS_IP") is not None


def check_env(runconfig):
    if not is_cs(runconfig):
        return
    mode = runconfig["mode"]
    if mode in ("eval_all", "train_and_eval"):
        raise OSError(f"Cannot run {mode} mode on the Cerebras System!")
    if mode == "eval" and runconfig.get("eval_steps") is None:
        raise ValueError("When performing eval on the Cerebras System, eval_steps must be provided.")


def run_config_kwargs(runconfig):
    keys = (
        "tf_random_seed",
        "save_summary_steps",
        "save_checkpoints_steps",
        "keep_checkpoint_max",
        "log_step_count_steps",
    )
    kwargs = {key: runconfig[key] for key in keys if key in runconfig}
    if runconfig.get("disable_standard_logs"):
        kwargs["log_step_count_steps"] = None
    return {**kwargs, "train_distribute": None, "eval_distribute": None, "device_fn": None}


def update_input_checkpoint_steps(params, model_dir, weights_of):
    """Skip the input that the last run read, if the order of the input is deterministic."""
    section = params["train_input"]
    latest = tf.train.latest_checkpoint(model_dir)
    if latest is None or params["runconfig"].get("disable_input_pipeline_ckpt"):
        return
    if not section.get("shuffle") or section.get("shuffle_seed") is not None:
        for name, value in weights_of(latest):
            if name == "global_step":
                section["skip_steps"] = int(value)
                print("SKIP", section["skip_steps"])


def warm_start_settings(checkpoint, exclude=None):
    """Settings for all variables but those of an output layer."""
    if checkpoint is None:
        return None
    pattern = ".*" if exclude is None else f"^((?!{exclude}).)*$"
    reader = tf.compat.v1.train.NewCheckpointReader(checkpoint)
    names = [name for name in reader.get_variable_to_shape_map() if re.match(pattern, name)]
    print("STORED", len(names))
    return tf.estimator.WarmStartSettings(ckpt_to_initialize_from=checkpoint, vars_to_warm_start=pattern)
