"""The settings messages that old scripts fill in: protobuf classes, built at import, for any protobuf release.

The original's generated files are not public. The fields and enums here are those that public scripts set. The field
numbers are our choice: JSON and text can be exchanged with the original, serialized bytes cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_PACKAGE = "cerebras_tensorflow.settings"
_ENUMS = {
    "TriState": "TS_UNSPECIFIED TS_ENABLED TS_DISABLED",
    "CerebrasType": "T_INVALID T_F16 T_F32 T_CB16",
    "AutogenPolicy": "AP_UNSPECIFIED AP_DISABLED AP_ENABLED",
    "ExecutionStrategy": "ES_UNSPECIFIED ES_PIPELINE ES_WEIGHT_STREAMING",
    "DebugArgs.DebugMGR.CleanPodPolicy": "UNSPECIFIED RUNNING ALL NONE",
}
"""Enum -> its values, numbered from 0."""

_MESSAGES = {
    "FullConfig": "target_num_replicas:int32 matching:FullConfig.Matching placement:FullConfig.Placement",
    "FullConfig.Matching": (
        "kernel:FullConfig.Kernel autogen_policy:AutogenPolicy add_pack_and_unpack:FullConfig.AddPackAndUnpack "
        "match_lair:FullConfig.MatchLair remove_meta_kernels:FullConfig.RemoveMetaKernels "
        "optimize_graph:FullConfig.OptimizeGraph"
    ),
    "FullConfig.Kernel": (
        "inc_pwt_estimate:bool enable_pipelined_mlm_loss:bool use_legacy_vsl:bool no_dcache_spill_splits:bool "
        "numerics:FullConfig.Numerics autogen_config:AutogenConfig"
    ),
    "FullConfig.Numerics": "layernorm_compute_dtype:CerebrasType",
    "FullConfig.AddPackAndUnpack": "max_egress_per_pack:int32",
    "FullConfig.MatchLair": "disabled_converters:string[]",
    "FullConfig.RemoveMetaKernels": "remove_reshape_meta:TriState",
    "FullConfig.OptimizeGraph": "placement_prediction:FullConfig.PlacementPrediction",
    "FullConfig.PlacementPrediction": "max_fill_rate:float",
    "FullConfig.Placement": (
        "prep_recolor_kernels:FullConfig.PrepRecolor optimize_buses:FullConfig.Margin pathfinder:FullConfig.Margin "
        "pathfinder_inter_replica:FullConfig.InterReplica"
    ),
    "FullConfig.PrepRecolor": "wrap_pack_kernel:bool",
    "FullConfig.Margin": "deltat_relative_margin:float",
    "FullConfig.InterReplica": "fix_existing:TriState allow_infeasible_initial_state:TriState",
    "AutogenConfig": ("always_store_inputs:TriState enable_task_based_estimator:TriState try_strip_outer_dim:TriState"),
    "CSConfig": "use_cbfloat16:bool",
    "DebugArgs": "debug_ini:DebugArgs.DebugINI debug_mgr:DebugArgs.DebugMGR debug_crd:DebugArgs.DebugCRD",
    "DebugArgs.DebugINI": "frozen_content:string",
    "DebugArgs.TaskSpecHint": "container_image:string",
    "DebugArgs.DebugMGR": (
        "clean_pod_policy:DebugArgs.DebugMGR.CleanPodPolicy task_spec_hints:map<DebugArgs.TaskSpecHint> "
        "scheduler_hints:map<string> labels:map<string>"
    ),
    "DebugArgs.PipelineOptions": "full_config:string",
    "DebugArgs.DebugCRD": "pipeline_options:DebugArgs.PipelineOptions",
}
"""Message -> its fields "name:type", numbered from 1. "[]" is a repeated field, "map<type>" a map from strings."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _Field.TYPE_INT32,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "float": _Field.TYPE_FLOAT,
}


def _set_type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


def _add_field(message: Any, full_name: str, name: str, kind: str, number: int) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.endswith("[]"):
        field.label = _Field.LABEL_REPEATED
        kind = kind.removesuffix("[]")
    if kind.startswith("map<"):
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "key", "string", 1)
        _add_field(entry, "", "value", kind.removeprefix("map<").removesuffix(">"), 2)
        field.label = _Field.LABEL_REPEATED
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{full_name}.{entry.name}"
        return
    _set_type(field, kind)


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="cerebras_tensorflow/settings.proto", package=_PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {"": file}

    def parent_of(full_name: str) -> tuple[Any, str]:
        parent, _, name = full_name.rpartition(".")
        return made[parent], name

    for full_name, fields in _MESSAGES.items():
        parent, name = parent_of(full_name)
        message = (file.message_type if parent is file else parent.nested_type).add(name=name)
        made[full_name] = message
        for number, item in enumerate(fields.split(), 1):
            field, _, kind = item.partition(":")
            _add_field(message, full_name, field, kind, number)
    for full_name, values in _ENUMS.items():
        parent, name = parent_of(full_name)
        enum = parent.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    return file


_POOL = descriptor_pool.Default()
_POOL.AddSerializedFile(_file().SerializeToString())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _enum(name: str) -> Any:
    return EnumTypeWrapper(_POOL.FindEnumTypeByName(f"{_PACKAGE}.{name}"))


FullConfig = _message("FullConfig")
AutogenConfig = _message("AutogenConfig")
CSConfig = _message("CSConfig")
DebugArgs = _message("DebugArgs")
TriState = _enum("TriState")
CerebrasType = _enum("CerebrasType")
AutogenPolicy = _enum("AutogenPolicy")
ExecutionStrategy = _enum("ExecutionStrategy")
for _top_level in (TriState, CerebrasType, AutogenPolicy, ExecutionStrategy):
    globals().update(_top_level.items())


def set_fields(message: Any, prefix: str = "") -> Iterator[str]:
    """Yield each field that is set in a message, as "path=value"."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if field.message_type is not None and hasattr(value, "ListFields"):
            yield from set_fields(value, f"{path}.")
        else:
            yield f"{path}={value!r}"
