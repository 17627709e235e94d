"""The variables of a session by their checkpoint names: resident ones in TensorFlow, streamed ones in the store."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.graph.nodes import GraphDef, prune
from cerebras_tensorflow.graph.program import Program, assign_name, dtype_from_name, read_name, value_name
from cerebras_tensorflow.runtime.fetches import FetchedGraph
from cerebras_tensorflow.runtime.session_snapshot import Elsewhere, ResidentCopies, SessionSnapshot
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

_TOGETHER_BYTES = 64 << 20  # values up to this size are set in one run
_ASSIGNMENT, _HANDLE = "cs_assign_", "cs_handle_"
_INITIAL = "cs_initial"  # scope of the ops of `assign`


class SessionVariables:
    """Sets, reads and copies the variables of one session.

    Args:
        program: The Program that the variables belong to.
        graph: The graph that `session` runs.
        session: The TensorFlow session.
        store: The weight store; None if nothing is streamed.
    """

    def __init__(self, program: Program, graph: FetchedGraph, session: Any, store: WeightStore | None) -> None:
        self._program = program
        self._graph = graph
        self._session = session
        self._store = store
        self._resident = {spec.name: index for index, spec in enumerate(program.variables)}
        self._streamed = {name: index for index, name in enumerate(streamed_names(program))}
        self._pending: dict[int, np.ndarray] = {}  # values for `flush` to set
        self._pending_bytes = 0
        self._copies = ResidentCopies(graph.graph)

    def is_resident(self, name: str) -> bool:
        """Whether the session holds a variable itself."""
        return name in self._resident

    def load(self, name: str, value: np.ndarray) -> None:
        """Set a variable. Small ones are set together in `flush`: each new set of fetches takes TensorFlow time."""
        if name in self._streamed:
            spec = self._program.streamed[self._streamed[name]]
            value = np.ascontiguousarray(value, dtype_from_name(spec.dtype)).reshape(spec.shape)
            self._opened().write(self._streamed[name], value)
            return
        self._pending[self._resident[name]] = value
        self._pending_bytes += np.asarray(value).nbytes
        if self._pending_bytes > _TOGETHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Set the variables that `load` has collected."""
        if self._pending:
            pending, self._pending, self._pending_bytes = self._pending, {}, 0
            feeds = {f"{value_name(index)}:0": value for index, value in pending.items()}
            self._session.run([self._graph.operation(assign_name(index)) for index in pending], feeds)

    def assign(
        self, graph_def: GraphDef, tensors: Mapping[str, str], feeds: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        """Set resident variables to tensors of another graph, in one run. No value passes through Python.

        Args:
            graph_def: The other graph. It is imported into this session's graph.
            tensors: Checkpoint name -> name of the tensor.
            feeds: Name of a tensor -> value, for the run.

        Returns:
            The names that are still to be set with `load`: those of weights in the store.
        """
        held = {name: self._resident[name] for name in tensors if name in self._resident}
        if held:
            roots = [tensors[name].split(":")[0] for name in held]
            wanted = graph_def if len(held) == len(tensors) else prune(graph_def, roots)
            present = {f"{node.name}:0" for node in wanted.node}
            added = GraphDef(versions=wanted.versions, library=wanted.library)
            added.node.extend(wanted.node)
            handles = {}
            for name, index in held.items():
                assign = self._graph.operation(assign_name(index))
                handles[f"{_HANDLE}{index}"] = assign.inputs[0]
                node = added.node.add(name=f"{_ASSIGNMENT}{index}", op="AssignVariableOp")
                node.input.extend([f"{_HANDLE}{index}", tensors[name]])
                node.attr["dtype"].type = assign.get_attr("dtype").as_datatype_enum
            with self._graph.graph.as_default():  # _INITIAL: the names must not collide with those of the original
                tf_private.import_nodes(added, _INITIAL, handles)
            fed = {f"{_INITIAL}/{name}": value for name, value in feeds.items() if name in present}
            self._session.run([self._graph.operation(f"{_INITIAL}/{_ASSIGNMENT}{i}") for i in held.values()], fed)
        return tuple(name for name in tensors if name not in held)

    def adopt(self, name: str, path: str, offset: int, checksum: int) -> bool:
        """Read a streamed variable from a file until its first write. Return False if the store cannot do that.

        Raises:
            CorruptCheckpointError: If the file's bytes fail their checksum.
        """
        if name not in self._streamed:
            return False
        return self._opened().adopt(self._streamed[name], path, offset, checksum)

    def read(self, name: str) -> np.ndarray:
        """Return a variable's value."""
        if name in self._streamed:
            return self._opened().read(self._streamed[name])
        self.flush()
        return np.asarray(self._session.run(f"{read_name(self._resident[name])}:0"))

    def snapshot(self, names: Iterable[str], elsewhere: Elsewhere | None = None) -> SessionSnapshot:
        """Return a snapshot of variables. Another thread can read it during later steps.

        Resident variables are copied. The copies use the memory of the last snapshot if that is closed. For streamed
        variables see weight_store/snapshot.py.

        Args:
            names: The variables.
            elsewhere: Those of them that other CSX have copied.

        Raises:
            StoreError: If the store has no room for a snapshot, or its last snapshot is still open.
        """
        wanted = set(names)
        streamed = {index: self._program.streamed[index] for name, index in self._streamed.items() if name in wanted}
        elsewhere, held = elsewhere or Elsewhere(), None
        try:
            held = self._opened().snapshot() if streamed else None
            if held is not None:
                for index in set(range(len(self._program.stored))) - set(streamed):
                    held.release(index)  # spilled values and sums of gradients: the step that needed them is over
            copies = self.copy(wanted - elsewhere.values.keys())
        except BaseException:
            elsewhere.close()
            if held is not None:
                held.close()
            raise
        resident = [spec for spec in self._program.variables if spec.name in wanted]
        return SessionSnapshot(resident, copies, elsewhere, streamed, held, self.recycle)

    def copy(self, names: Container[str]) -> Mapping[str, np.ndarray]:
        """Return copies of the resident ones among some variables. They do not change until `recycle`."""
        self.flush()
        values = {
            name: self._graph.tensor(f"{read_name(index)}:0") for name, index in self._resident.items() if name in names
        }
        return self._copies.take(self._session, values)

    def recycle(self, copies: Mapping[str, np.ndarray]) -> None:
        """Keep the memory of finished copies for the next ones, unless memory is scarce."""
        self._copies.recycle(copies)

    def prepare_snapshot(self, names: Iterable[str]) -> None:
        """Allocate the memory for a snapshot of these variables. Call it in any thread, before the first snapshot."""
        wanted = set(names)
        self._copies.prepare(spec for spec in self._program.variables if spec.name in wanted)

    def snapshot_bytes(self, names: Iterable[str]) -> int:
        """Return the most host memory that a snapshot allocates [B]. It uses the memory of the last one again."""
        wanted = set(names)
        resident = sum(spec.num_bytes for spec in self._program.variables if spec.name in wanted)
        stored = self._store.snapshot_bytes if self._store is not None else 0
        return max(resident - self._copies.kept_bytes, 0) + stored

    def close(self) -> None:
        """Free the memory of snapshots."""
        self._copies.drop()

    def _opened(self) -> WeightStore:
        assert self._store is not None, "a Program with streamed variables has a store"
        return self._store


def streamed_names(program: Program) -> tuple[str, ...]:
    """Return the names of the variables in the store, by index."""
    return tuple(spec.name for spec in program.streamed) if program.needs_store else ()
