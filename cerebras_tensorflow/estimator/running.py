"""From a model to a running session: the target, the compiled Program, the store, the weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.compiler import cache, report
from cerebras_tensorflow.compiler.estimate import Estimate, estimate
from cerebras_tensorflow.compiler.memory_plan import plan_memory
from cerebras_tensorflow.compiler.step import Step, compile_step
from cerebras_tensorflow.compiler.weight_streaming import StreamingOptions
from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.cs_config import CSConfig
from cerebras_tensorflow.estimator.model_call import Model
from cerebras_tensorflow.graph.cost import flops, output_bytes
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.disk_space import Need, check_space
from cerebras_tensorflow.runtime.heap import return_large_buffers
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store import FileStore, MemoryStore, WeightStore
from cerebras_tensorflow.system import registry

_MEMORY_SHARE = 0.25  # of the free memory, up to which weight_store "auto" means memory


@dataclass(frozen=True)
class Target:
    """Where a run executes.

    Attributes:
        mode: "pipelined" or "weight_streaming".
        is_cs: Whether the run asked for a CS system, so that its documented restrictions hold.
        system: The simulated system; None: the CPU alone.
    """

    mode: str
    is_cs: bool
    system: registry.System | None


@dataclass(frozen=True)
class Compiled:
    """A compiled step.

    Attributes:
        program: The Program.
        compile_s: Time it took [s]; 0 if it came from the cache.
        folder: Its tfcs_<checksum> folder; None if nothing was written.
        estimate: Simulated speed.
    """

    program: Program
    compile_s: float
    folder: Path | None
    estimate: Estimate


def choose_target(config: Any, use_cs: bool) -> Target:
    """Return the target of a run: the interpreter gives the mode, cs_ip the system.

    Weight streaming always runs on a simulated system, pipelined without cs_ip on the CPU alone.

    Raises:
        SystemNotFoundError: If no simulated system answers at cs_ip.
    """
    appliance_mode = getattr(config, "execution_mode", None)
    if appliance_mode is not None:  # 1.6 to 1.8: the config names the mode, use_cs the system
        return Target(appliance_mode, True, registry.find(None)) if use_cs else Target(env.PIPELINED, False, None)
    environment = env.read()
    cs_ip = (getattr(config, "cs_ip", None) or environment.k8s_cs_ip) if use_cs else None
    mode = environment.execution_mode
    if cs_ip is None and mode != WEIGHT_STREAMING:
        return Target(mode, False, None)
    return Target(mode, cs_ip is not None, registry.find(cs_ip))


class SessionCreator(tf.compat.v1.train.SessionCreator):
    """Makes the session when MonitoredSession has called the hooks' begin."""

    def __init__(self, create: Callable[[], ProgramSession]) -> None:
        self._create = create

    def create_session(self) -> ProgramSession:
        """Return the session."""
        return self._create()


@contextmanager
def held(target: Target, description: str) -> Iterator[None]:
    """Hold the target's system for one run; queue if it is busy."""
    if target.system is None:
        yield
        return
    with target.system.run(target.mode, description=description, on_wait=run_log.info):
        yield


def cs_config_of(config: Any) -> CSConfig:
    """Return the CSConfig of a run; another object's fields of the same names are taken over."""
    given = getattr(config, "cs_config", None)
    if isinstance(given, CSConfig):
        return given
    names = ("weight_store", "weight_store_dir", "stream_window_bytes", "min_stream_bytes", "use_xla")
    return CSConfig(**{name: getattr(given, name) for name in names if hasattr(given, name)})


def session_config_of(config: Any, mode: str) -> Any:
    """Return the session settings of a run: the caller's, with XLA where it was asked for."""
    result = tf.compat.v1.ConfigProto()
    if config.session_config is not None:
        result.CopyFrom(config.session_config)
    if cs_config_of(config).use_xla:
        if mode == WEIGHT_STREAMING:
            run_log.warning("use_xla is ignored: weight streaming runs without XLA.")
        else:
            env.allow_xla_on_cpu()
            result.graph_options.optimizer_options.global_jit_level = tf.compat.v1.OptimizerOptions.ON_2
    return result


def compile_model(model: Model, step: Step, mode: str, config: Any, compile_dir: str | None) -> Compiled:
    """Compile a step, or take it from the cache.

    Args:
        model: The model that the step comes from.
        step: The step.
        mode: Execution mode.
        config: RunConfig.
        compile_dir: Folder of the tfcs_<checksum> folder; None: compile in memory and write nothing.
    """
    settings = cs_config_of(config)
    options = StreamingOptions(settings.min_stream_bytes, settings.stream_window_bytes)
    begin = time.perf_counter()
    folder = cache.folder(compile_dir, cache.checksum(step, mode, options)) if compile_dir else None
    program = cache.load(folder) if folder else None
    if program is not None:
        run_log.info("Cached compilation found for this model configuration")
        return Compiled(program, 0.0, folder, _estimate(model, program))
    program = compile_step(step, mode, options)
    compiled_s = time.perf_counter() - begin
    for note in program.notes:
        run_log.warning("%s.", note)
    speed = _estimate(model, program)
    if folder is not None:
        plan = plan_memory(program, output_bytes(model.graph))
        texts = {
            "schedule.txt": report.schedule_text(program),
            "memory_plan.txt": report.memory_plan_text(program, plan),
            "compile_report.txt": report.compile_report_text(speed),
        }
        cache.save(folder, program, texts)
    return Compiled(program, compiled_s, folder, speed)


def _estimate(model: Model, program: Program) -> Estimate:
    inputs = [model.graph.get_tensor_by_name(f"{name}:0") for name in model.inputs.names]
    dims = [tensor.shape.as_list()[0] for tensor in inputs if tensor.shape.rank]
    sizes = output_bytes(model.graph)
    batch_bytes = sum(sizes[name] for name in model.inputs.names)
    names = set(NodeTable(program.graph_def).nodes)
    return estimate(program, int(dims[0] or 1) if dims else 1, batch_bytes, flops(model.graph, names))


def open_store(program: Program, settings: CSConfig, model_dir: str, is_training: bool = False) -> WeightStore | None:
    """Return the weight store of a Program; None if nothing is streamed.

    A file store of training has `weight_store_dir` for itself. Any other has a folder inside it, so that a model can be
    evaluated while it is trained.

    Raises:
        StoreError: If the weights, and in training a checkpoint, do not fit on their disks; or if another run uses the
            store's folder.
    """
    checkpoint = Need("a checkpoint", Path(model_dir), program.weight_bytes, "model_dir")
    needs = [checkpoint] if is_training else []
    check_space(needs)
    if not program.streamed:
        return None
    needed = sum(spec.num_bytes for spec in program.streamed)
    kind = settings.weight_store
    if kind == "memory" or (kind == "auto" and needed < _MEMORY_SHARE * free_memory_bytes()):
        return MemoryStore(program.streamed)
    if kind != "file":
        from cerebras_tensorflow.runtime import weight_servers  # and gRPC, which few runs need

        places = weight_servers.summon()
        if kind == "servers" or weight_servers.have_room(places, needed):
            return weight_servers.ServerStore(program.streamed, places)
    return_large_buffers()
    folder = Path(settings.weight_store_dir or os.path.join(model_dir, "weight_store"))
    return FileStore(program.streamed, folder if is_training else folder / "other", beside=needs)


def free_memory_bytes() -> int:
    """Return the bytes of memory that the system can still give to programs."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise CerebrasError("/proc/meminfo has no MemAvailable; set weight_store to memory or file in the csconfig section")
