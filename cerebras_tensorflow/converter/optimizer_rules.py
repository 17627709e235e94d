"""Settings of optimizers, learning rates and sparsity that releases 2.1 and 2.2 of the PyTorch Model Zoo renamed."""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.converter.rules import Config

_RATE = "learning_rate"
# Pairs of settings that 2.1 made one: new name -> (the old names, their defaults, optimizers that have it).
_PAIRS: dict[str, tuple[tuple[str, str], tuple[float, float], tuple[str, ...]]] = {
    "betas": (("beta1", "beta2"), (0.9, 0.999), ("adam", "adamw", "adamax", "nadam", "radam", "lamb", "lion")),
    "eps": (("eps1", "eps2"), (1e-30, 1e-3), ("adafactor",)),
    "etas": (("eta1", "eta2"), (0.5, 1.2), ("rprop",)),
    "step_sizes": (("step_size_min", "step_size_max"), (1e-6, 50.0), ("rprop",)),
}
_LION_BETAS = (0.9, 0.99)
# Schedules -> old names of their settings and the new ones. Where a setting had two old names, a downgrade uses the
# first one. Releases before 2.1 know `initial_learning_rate` too.
_STARTS = (_RATE, "initial_learning_rate"), ("base_lr", "initial_learning_rate")
_DECAYS = ("decay_steps", "total_iters"), ("steps", "total_iters")
_SCHEDULES: dict[str, tuple[tuple[str, str], ...]] = {
    "constant": (("steps", "total_iters"), ("decay_steps", "total_iters"), ("val", _RATE)),
    "linear": (("steps", "total_iters"), ("decay_steps", "total_iters"), *_STARTS),
    "polynomial": (*_DECAYS, *_STARTS),
    "exponential": (*_DECAYS, *_STARTS),
    "inverseexponentialtimedecay": (*_DECAYS, *_STARTS),
    "cosinedecay": (*_DECAYS, *_STARTS),
    "piecewiseconstant": (("values", "learning_rates"), ("boundaries", "milestones")),
    "cosineannealing": (("t_max", "T_max"), *_STARTS),
    "cosineannealingwarmrestarts": (("t_0", "T_0"), ("t_mult", "T_mult"), *_STARTS),
    "step": _STARTS,
    "multistep": _STARTS,
}


def renamed_optimizer(section: Config, is_newer: bool) -> Config:
    """Return the section `optimizer` with the names since 2.1, or with those before it.

    >>> renamed_optimizer({"optimizer_type": "AdamW", "beta1": 0.9, "beta2": 0.95, "weight_decay_rate": 0.1}, True)
    {'optimizer_type': 'AdamW', 'weight_decay': 0.1, 'betas': [0.9, 0.95]}
    >>> renamed_optimizer({"optimizer_type": "AdamW", "weight_decay": 0.1, "betas": [0.9, 0.95]}, False)
    {'optimizer_type': 'AdamW', 'weight_decay_rate': 0.1, 'beta1': 0.9, 'beta2': 0.95}
    """
    kind = str(section.get("optimizer_type", "")).lower()
    section = _renamed(section, (("weight_decay_rate", "weight_decay"),), is_newer)
    for new, (names, defaults, kinds) in _PAIRS.items():
        if kind not in kinds:
            continue
        if is_newer and any(name in section for name in names):
            values = _LION_BETAS if kind == "lion" else defaults
            section[new] = [section.pop(name, value) for name, value in zip(names, values, strict=True)]
        elif not is_newer and isinstance(section.get(new), list | tuple):
            section |= dict(zip(names, section.pop(new), strict=True))
    if isinstance(rates := section.get(_RATE), list):
        section[_RATE] = [renamed_schedule(rate, is_newer) if isinstance(rate, dict) else rate for rate in rates]
    elif isinstance(rates, dict):
        section[_RATE] = renamed_schedule(rates, is_newer)
    return section


def renamed_schedule(schedule: Config, is_newer: bool) -> Config:
    """Return one schedule of the learning rate with the names since 2.1, or with those before it.

    >>> renamed_schedule({"scheduler": "Linear", "steps": 10, "end_learning_rate": 0.0}, True)
    {'scheduler': 'Linear', 'end_learning_rate': 0.0, 'total_iters': 10}
    """
    kind = str(schedule.get("scheduler", "")).lower().removesuffix("lr")
    names = _SCHEDULES.get(kind, ())
    return _renamed(schedule, tuple(pair for pair in names if is_newer or pair not in _STARTS), is_newer)


def sparsity_2_2(section: Any) -> Any:
    """Return the section `sparsity` with the names since 2.2: one group of settings, or a list of them.

    >>> sparsity_2_2({"type": "gmp", "sparsity_schedule": [[0, 0.3], [100, 0.5]], "param_name_patterns": "fc.*"})
    {'algorithm': 'gmp', 'update': {'steps': [0, 100]}, 'schedule': [0.3, 0.5], 'param_filter': 'fc*'}
    """
    if isinstance(section, list):
        return [sparsity_2_2(group) for group in section]
    if not isinstance(section, dict):
        return section
    section = dict(section)
    new: Config = {}
    if (algorithm := section.pop("type", None)) not in (None, "static"):
        new["algorithm"] = algorithm
    if "schedule" in section:
        new["update"] = section.pop("schedule")
    if (points := section.pop("sparsity_schedule", None)) is not None:
        new["update"] = {"steps": [step for step, _ in points]}
        new["schedule"] = [level for _, level in points]
    if "sparsity" in section and not isinstance(section["sparsity"], int | float):
        new["schedule"] = section.pop("sparsity")
    if isinstance(new.get("update"), int):
        frequency = new.pop("update")
        new |= {"update": {"freq": frequency}} if frequency != 1 else {}
    if (patterns := section.pop("param_name_patterns", None)) is not None:
        new["param_filter"] = _filter(patterns)
    return new | section


def _filter(patterns: Any) -> Any:
    if isinstance(patterns, str):
        return patterns.replace(".*", "*")
    return [_filter(pattern) for pattern in patterns]


def _renamed(section: Config, names: tuple[tuple[str, str], ...], is_newer: bool) -> Config:
    section = dict(section)
    for old, new in names:
        source, target = (old, new) if is_newer else (new, old)
        if source in section and target not in section:
            section[target] = section.pop(source)
    return section
