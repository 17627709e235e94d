"""The arguments of every public class, method and function, in order, with their defaults."""

import inspect

import tensorflow as tf

SUBMODULES = {"v2": ("", "experimental", "export"), "v1": ("", "experimental", "export", "inputs", "tpu")}
TENSORFLOW_OWN = ("SessionRunArgs", "SessionRunContext", "SessionRunValues", "VocabInfo")


def _api(version):
    return tf.estimator if version == "v2" else tf.compat.v1.estimator


def _shown(function):
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    shown = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            shown.append(f"*{parameter.name}")
        elif parameter.kind is parameter.VAR_KEYWORD:
            shown.append(f"**{parameter.name}")
        elif parameter.default is parameter.empty:
            shown.append(parameter.name)
        else:
            default = parameter.default
            is_plain = isinstance(default, (bool, int, float, str, type(None), tuple, list))
            shown.append(
                f"{parameter.name}={default!r}" if is_plain else f"{parameter.name}=<{type(default).__name__}>"
            )
    return shown


def _members(value):
    members = {}
    for kind in reversed(value.__mro__):
        if kind is object:
            continue
        for name in vars(kind):
            if not name.startswith("_"):
                members[name] = getattr(value, name)
    return members


def _describe(value):
    if not inspect.isclass(value):
        return _shown(value)
    members = _members(value)
    methods = {name: _shown(member) for name, member in members.items() if inspect.isroutine(member)}
    constructor = _shown(value)
    return {
        "constructor": [] if constructor == ["*args", "**kwargs"] else constructor,
        "methods": methods,
        "properties": sorted(name for name, member in members.items() if isinstance(member, property)),
    }


def _module(version, submodule):
    module = _api(version)
    return getattr(module, submodule) if submodule else module


def _names(module):
    return sorted(
        name
        for name in dir(module)
        if not name.startswith("_") and name not in ("tf", "division", "absolute_import", "print_function")
    )


def names_of_every_module(run):
    for version, submodules in SUBMODULES.items():
        for submodule in submodules:
            run.note(f"{version} {submodule}", _names(_module(version, submodule)))


def _note(run, version, submodule):
    module = _module(version, submodule)
    for name in _names(module):
        value = getattr(module, name, None)
        if not inspect.ismodule(value) and name not in TENSORFLOW_OWN:
            run.note(f"{version}.{submodule}.{name}", _describe(value))


def top_v1(run):
    _note(run, "v1", "")


def top_v2(run):
    _note(run, "v2", "")


def experimental_v1(run):
    _note(run, "v1", "experimental")


def experimental_v2(run):
    _note(run, "v2", "experimental")


def export_v1(run):
    _note(run, "v1", "export")


def export_v2(run):
    _note(run, "v2", "export")


def inputs_v1(run):
    _note(run, "v1", "inputs")


def tpu_v1(run):
    _note(run, "v1", "tpu")
