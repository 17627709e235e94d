"""CSRunConfig as old scripts call it: with cs_ip and stack_params in the container, cs_config on the appliance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from cerebras_tensorflow.compat import messages
from cerebras_tensorflow.config.env import PIPELINED, WEIGHT_STREAMING
from cerebras_tensorflow.estimator.config import run_config
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.logs import run_log

_HONOURED = (
    "execution_strategy",
    "weight_store",
    "weight_store_dir",
    "stream_window_bytes",
    "min_stream_bytes",
    "memory_budget",
)
_logged: set[str] = set()


class CSRunConfig(run_config.CSRunConfig):
    """The container's CSRunConfig of releases 1.2 to 1.7. Logs once each setting that has no effect here."""

    def __init__(
        self,
        cs_ip: str | None = None,
        system_name: str | None = None,
        cs_config: Any = None,
        stack_params: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cs_ip, system_name, cs_config, stack_params, **kwargs)
        _log_unused("stack_params", _stack_settings(stack_params))
        _log_unused("cs_config", _unused_settings(cs_config))


class ApplianceRunConfig(run_config.CSRunConfig):
    """The appliance's CSRunConfig of releases 1.6 to 1.8. It has no cs_ip; cs_config sets the execution mode.

    Attributes:
        execution_mode: Mode of a run with use_cs. cs_config.execution_strategy sets it; the default is weight
            streaming, the only mode of release 1.6.
    """

    def __init__(self, cs_config: Any = None, **kwargs: Any) -> None:
        super().__init__(cs_config=cs_config, **kwargs)
        _log_unused("cs_config", _unused_settings(cs_config))

    @property
    def execution_mode(self) -> str:
        """The mode of a run on the CS system."""
        strategy = getattr(self.cs_config, "execution_strategy", None)
        return PIPELINED if strategy == messages.ExecutionStrategy.Value("ES_PIPELINE") else WEIGHT_STREAMING


ApplianceRunConfig.__name__ = ApplianceRunConfig.__qualname__ = "CSRunConfig"  # scripts compare names


def _stack_settings(stack_params: Any) -> list[str]:
    if not isinstance(stack_params, Mapping):
        return []
    settings: list[str] = []
    for key, value in stack_params.items():
        settings += messages.set_fields(value) if hasattr(value, "ListFields") else [f"{key}={value!r}"]
    return settings


def _unused_settings(cs_config: Any) -> list[str]:
    if hasattr(cs_config, "ListFields"):
        return list(messages.set_fields(cs_config))
    if not isinstance(cs_config, CSConfig):
        return []
    defaults = CSConfig()
    settings: list[str] = []
    for item in fields(cs_config):
        value = getattr(cs_config, item.name)
        if item.name in _HONOURED or value is None or value == getattr(defaults, item.name):
            continue
        if hasattr(value, "ListFields"):
            settings += messages.set_fields(value, f"{item.name}.")
        else:
            settings.append(f"{item.name}={value!r}")
    return settings


def _log_unused(kind: str, settings: Iterable[str]) -> None:
    new = [setting for setting in settings if f"{kind}.{setting}" not in _logged]
    _logged.update(f"{kind}.{setting}" for setting in new)
    if new:
        run_log.info("%s: noted, without effect on the simulated system: %s.", kind, ", ".join(new))
