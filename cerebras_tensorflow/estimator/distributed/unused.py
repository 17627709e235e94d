"""Settings that a run in TensorFlow's own session does not use: a warning names them."""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.execution import micro_batch_size
from cerebras_tensorflow.logs import run_log

_FIELDS = ("weight_store", "weight_store_dir", "stream_window_bytes", "min_stream_bytes", "memory_budget", "use_xla")


def warn_of_unused(settings: RunSettings, params: Any, mode: str, **others: Any) -> None:
    """Warn of the settings that a run in TensorFlow's own session does not use, if the caller has set one.

    Args:
        settings: Settings of the run.
        params: The caller's params.
        mode: One of ModeKeys.
        **others: More settings of the caller that are not used; None: not set.

    Raises:
        SettingsError: If micro_batch_size is not one of the documented values.
    """
    default = CSConfig()
    given = {micro_batch_size.KEY: micro_batch_size.requested(settings.cs, params, mode)}
    for name in _FIELDS:
        value = getattr(settings.cs, name)
        given[name] = value if value != getattr(default, name) else None
    given["checkpoint_format"] = settings.checkpoint_format if settings.checkpoint_format == "h5" else None
    names = [f"{name}={value!r}" for name, value in {**given, **others}.items() if value is not None]
    if names:
        run_log.warning("Not used, since this run is in TensorFlow's own session: %s.", ", ".join(names))
