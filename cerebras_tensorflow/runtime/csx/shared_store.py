"""The weight store of several CSX: each weight, its slots and the total of its gradient are in the store of one CSX.

Each CSX has a store of its own for what it owns and for what every CSX holds. It reads the rest from the owners, when
a pass over the model needs it (peers.py). A snapshot on the first CSX has the weights of all CSX, so that a checkpoint
does not depend on how many there are.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import IntEnum

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.errors import CollectiveError, StoreError
from cerebras_tensorflow.graph.micro_batches import Gradient, MicroBatches
from cerebras_tensorflow.graph.program import Program, dtype_from_name
from cerebras_tensorflow.runtime.collectives.signs_of_life import host_name
from cerebras_tensorflow.runtime.csx.arrivals import Arrivals
from cerebras_tensorflow.runtime.csx.checkpoint_files import CheckpointFiles, Source
from cerebras_tensorflow.runtime.csx.neighbours import CANNOT, Neighbours
from cerebras_tensorflow.runtime.csx.peers import Answer, Peers, Request
from cerebras_tensorflow.runtime.csx.sum_stream import SumStream
from cerebras_tensorflow.runtime.micro_batches.streamed import Part
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes, private_copy
from cerebras_tensorflow.runtime.weight_store.interface import Move, WeightStore, as_bytes, row_bytes, shaped
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory
from cerebras_tensorflow.runtime.weight_store.snapshot import PIECE_BYTES, Lifetime, OwnedElsewhere, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.written_rows import num_rows

_NO_SUMS = MicroBatches(1, (), ())


class Kind(IntEnum):
    """The kinds of requests between CSX."""

    READ = 1
    ROWS = 2
    WRITE = 3
    HOLD = 4  # take a snapshot; the answer is why there is no room for one, or empty
    HELD = 5  # read a weight of the snapshot
    RELEASE = 6
    END_HOLD = 7
    SAVE = 8  # write a weight of the snapshot into a checkpoint
    FLUSH = 9  # make durable what was written there
    SUM = 10  # rows of the sum of a group of micro-batches; `stop` is the number of the group
    TOTAL = 11  # rows of a total that every CSX needs
    LOAD = 12  # set a weight from a checkpoint
    LOADED = 13  # close that checkpoint
    COPIES = 14  # host, and memory that a snapshot may take there
    PLACE = 15  # where rows are in the owner's memory, in place of READ
    PLACED_SUM = 16  # SUM and TOTAL that the receiver takes from the sender's memory
    PLACED_TOTAL = 17


class SharedStore(WeightStore):
    """The store of one of several CSX.

    It has more than 20 methods because a weight store has 15, and it answers the other CSX besides.

    Args:
        program: The Program of this CSX.
        rank: Number of this CSX.
        local: The store of `Program.stored_by`.
        connect: Makes the connections to the others, given what answers their requests, the kinds to count, and the
            memory that the others may read.
        checkpoints: Writes and reads checkpoints for the first CSX; None: this is the first one.

    Attributes:
        sums: Sends the sums of gradients to the CSX that add them.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        local: WeightStore,
        connect: Callable[[Answer, Iterable[int], SharedMemory | None], Peers],
        checkpoints: CheckpointFiles | None = None,
    ) -> None:
        super().__init__(program.stored)
        self._owners = program.owners
        self._rank = rank
        self._local = local
        self._checkpoints = checkpoints
        held = [index for index in range(len(self.specs)) if program.is_held_by(rank, index)]
        self._places = {index: place for place, index in enumerate(held)}
        self._owned = {index for index in held if not program.is_on_every_csx(index)}
        self._indices = held
        self._numbers = {spec.name: index for index, spec in enumerate(program.streamed)}
        self._others = sorted(set(range(program.micro_batches.num_csx if program.micro_batches else 1)) - {rank})
        self._buffers = Buffers()
        self._updates = 0  # that this CSX has done
        self._is_updating = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._held: StoreSnapshot | None = None  # for a checkpoint of the first CSX
        self._lifetime = Lifetime()
        self._no_snapshot = threading.Event()
        self._no_snapshot.set()
        local.on_move = self._note_local
        self._neighbours = Neighbours(local)
        self._arrivals = Arrivals(
            program.micro_batches or _NO_SUMS, rank, self, self._send_total, self._check, isinstance(local, MemoryStore)
        )
        self.sums = SumStream(self._arrivals, self._send_sum)
        counted = (Kind.READ, Kind.ROWS, Kind.SUM, Kind.TOTAL)
        self._peers = connect(self._answer, counted, self._neighbours.memory)

    @property
    def wire_bytes(self) -> tuple[int, int]:
        """Bytes of weights and sums that this CSX has sent to others and received from them for their steps."""
        return self._peers.bytes_sent, self._peers.bytes_received

    @override
    def read(self, index: int) -> np.ndarray:
        return self._local.read(self._places[index]) if index in self._places else self._view_elsewhere(index)

    @override
    def read_unchecked(self, index: int) -> np.ndarray:
        return self._local.read_unchecked(self._places[index]) if index in self._places else self._view_elsewhere(index)

    @override
    def read_private(self, index: int) -> np.ndarray:
        if index in self._places:
            return self._local.read_private(self._places[index])
        return self.read_slice(index, 0, num_rows(self.specs[index]))

    def _view_elsewhere(self, index: int) -> np.ndarray:
        return self.view_slice(index, 0, num_rows(self.specs[index]))

    @override
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        if index in self._places:
            return self._local.read_slice(self._places[index], start, stop)
        values = self.view_slice(index, start, stop)
        return values if values.flags.writeable else private_copy(values)

    @override
    def view_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        if index in self._places:
            return self._local.view_slice(self._places[index], start, stop)
        spec, owner = self.specs[index], self._owners[index]
        num_bytes = (stop - start) * row_bytes(spec)
        request = Request(Kind.READ, index, start, stop, self._version)
        with self.moving("receive", index, num_bytes):
            values = self._neighbours.read(self._peers, owner, replace(request, kind=Kind.PLACE), num_bytes)
            if values is None:
                values = self._peers.ask(owner, request, out=self._buffers.take(num_bytes))
        return shaped(values, spec, stop - start)

    @override
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        if index in self._places:
            return self._local.read_rows(self._places[index], rows)
        self._check_rows(index, rows)
        spec = self.specs[index]
        unique, inverse = np.unique(rows, return_inverse=True)
        with self.moving("receive", index, unique.size * row_bytes(spec)):
            values = self._buffers.take(unique.size * row_bytes(spec))
            request = Request(Kind.ROWS, index, 0, unique.size, self._version)
            self._peers.ask(self._owners[index], request, as_bytes(unique.astype(np.int64)), values)
        return np.asarray(shaped(values, spec, unique.size)[inverse.reshape(rows.shape)])

    @override
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        if index in self._places:
            self._local.write_slice(self._places[index], start, value)
            return
        data = as_bytes(np.ascontiguousarray(value))
        with self.moving("store", index, data.nbytes):
            request = Request(Kind.WRITE, index, start, start + data.nbytes // row_bytes(self.specs[index]))
            self._peers.ask(self._owners[index], replace(request, after=self._version), data)

    @override
    def lend(self, index: int, start: int, stop: int) -> np.ndarray:
        return self._local.lend(self._places[index], start, stop)

    @override
    def between_steps(self) -> None:
        self._local.between_steps()

    @override
    def update_begins(self) -> None:
        self._is_updating = True

    @override
    def update_ended(self) -> None:
        with self._changed:
            self._is_updating = False
            self._updates += 1
            self._changed.notify_all()

    @override
    def flush(self) -> None:
        self._local.flush()

    @override
    def drop_cache(self) -> None:
        self._local.drop_cache()

    @override
    def snapshot(self) -> StoreSnapshot:
        with self._lifetime.new_snapshot():
            own = self._local.snapshot()
            try:
                self._hold_others()
            except BaseException:
                own.close()
                raise
        self._no_snapshot.clear()

        def pieces(index: int) -> Iterator[Bytes]:
            if index in self._places:
                return own.pieces(self._places[index])
            return self._owned_elsewhere(index)

        def release(index: int) -> None:
            if index in self._places:
                own.release(self._places[index])
            else:
                self._peers.ask(self._owners[index], Request(Kind.RELEASE, index))

        def close() -> None:
            try:
                own.close()
                for rank in self._others:
                    self._peers.ask(rank, Request(Kind.END_HOLD))
            finally:
                self._no_snapshot.set()
                self._lifetime.end_snapshot()

        return StoreSnapshot(pieces, release, close)

    @property
    @override
    def snapshot_bytes(self) -> int:
        # Memory is that of a host. The other hosts count as if they had as much of it free as this one.
        taken = Counter({host_name(): self._local.snapshot_bytes})
        for rank in self._others:
            host, num_bytes = json.loads(self._peers.ask(rank, Request(Kind.COPIES)).tobytes())
            taken[host] += num_bytes
        return max(taken.values())

    def owner_elsewhere(self, name: str) -> int | None:
        """Return the other CSX that owns a weight; None if there is none."""
        index = self._numbers.get(name)
        return None if index is None or index in self._places else self._owners[index]

    def read_by_owner(self, owner: int, name: str, source: Source) -> None:
        """Have the owner of a weight read it from a checkpoint."""
        text = json.dumps([source.path, source.key]).encode()
        request = Request(Kind.LOAD, self._numbers[name], after=self._version)
        self._peers.ask(owner, request, np.frombuffer(text, np.uint8))

    def end_reading(self, owner: int) -> None:
        """Have an owner close the checkpoint that it has read."""
        self._peers.ask(owner, Request(Kind.LOADED))

    def _hold_others(self) -> None:
        """Have the other CSX take snapshots: all of them, or none.

        Raises:
            StoreError: If one of them has no room for a snapshot.
        """
        for number, rank in enumerate(self._others):
            refusal = self._peers.ask(rank, Request(Kind.HOLD, after=self._updates))
            if refusal.size:
                for holding in self._others[:number]:
                    self._peers.ask(holding, Request(Kind.END_HOLD))
                raise StoreError(f"rank {rank}: {refusal.tobytes().decode()}")

    def _owned_elsewhere(self, index: int) -> OwnedElsewhere:
        """Return a weight of the snapshot that another CSX owns."""
        owner = self._owners[index]

        def pieces() -> Iterator[Bytes]:
            yield from self._peers.stream(owner, Request(Kind.HELD, index), PIECE_BYTES)
            self._peers.ask(owner, Request(Kind.RELEASE, index))

        def write(text: bytes) -> bytes:
            return self._peers.ask(owner, Request(Kind.SAVE, index), np.frombuffer(text, np.uint8)).tobytes()

        return OwnedElsewhere(owner, pieces(), write, lambda: self._peers.ask(owner, Request(Kind.FLUSH)))

    def wait_for_snapshot(self) -> None:
        """Wait until the open snapshot, if there is one, has been written: it needs the other CSX."""
        self._no_snapshot.wait()

    @override
    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._arrivals.close()
        self._peers.close()
        self.sums.close()
        if self._held is not None:
            self._held.close()
        self._local.close()
        self._lifetime.close()

    @property
    def _version(self) -> int:
        """Updates that the owner of a weight must have done before this CSX may read or set it."""
        return self._updates + self._is_updating

    def _note_local(self, move: Move) -> None:
        """Report a move of the local store as one of this store."""
        with self._count_lock:
            if move.kind == "store":
                self.bytes_written += move.num_bytes
            else:
                self.bytes_read += move.num_bytes
        if self.on_move is not None:
            self.on_move(replace(move, weight=self._indices[move.weight]))

    def _wait_for_updates(self, number: int) -> None:
        """Wait until this CSX has done a number of updates.

        Raises:
            CollectiveError: If it ends before.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._updates >= number or self._is_closed)
            if self._updates < number:
                raise CollectiveError(f"rank {self._rank} has ended")

    def _answer(self, request: Request, data: Bytes) -> tuple[int, Iterable[Bytes]]:
        """Answer a request of another CSX: return the size of the answer, and its parts."""
        self._wait_for_updates(request.after)
        if request.kind in (Kind.SUM, Kind.TOTAL):
            self._take_sum(request, data, is_private=True)
            return 0, ()
        if request.kind in (Kind.PLACED_SUM, Kind.PLACED_TOTAL):
            kind = Kind.SUM if request.kind == Kind.PLACED_SUM else Kind.TOTAL
            value = self._neighbours.taken(self._peers, data)
            if value is None:
                return CANNOT.nbytes, (CANNOT,)
            self._take_sum(replace(request, kind=kind), value, is_private=False)
            return 0, ()
        if request.kind == Kind.HOLD:
            refusal = self._hold()
            return refusal.nbytes, (refusal,)
        if request.kind == Kind.COPIES:
            text = np.frombuffer(json.dumps([host_name(), self._local.snapshot_bytes]).encode(), np.uint8)
            return text.nbytes, (text,)
        if request.kind == Kind.END_HOLD:
            held, self._held = self._held, None
            if held is not None:
                held.close()
            if self._checkpoints is not None:
                self._checkpoints.close()
            return 0, ()
        if request.kind == Kind.FLUSH and self._checkpoints is not None:
            self._checkpoints.flush()
            return 0, ()
        if request.kind == Kind.LOADED and self._checkpoints is not None:
            self._checkpoints.close()
            return 0, ()
        if request.index not in self._owned:
            raise CollectiveError(f"it does not own weight {request.index}")
        return self._answer_for(request, self._places[request.index], data)

    def _answer_for(self, request: Request, place: int, data: Bytes) -> tuple[int, Iterable[Bytes]]:
        """Answer a request for a weight that this CSX owns."""
        spec = self._local.specs[place]
        if request.kind == Kind.PLACE:
            values = as_bytes(self._local.view_slice(place, request.start, request.stop))
            found = self._neighbours.place(self._peers, values)
            return found.nbytes, (found,)
        if request.kind == Kind.READ:
            values = as_bytes(np.ascontiguousarray(self._local.view_slice(place, request.start, request.stop)))
            return values.nbytes, (values,)
        if request.kind == Kind.ROWS:
            values = as_bytes(np.ascontiguousarray(self._local.read_rows(place, data.view(np.int64))))
            return values.nbytes, (values,)
        if request.kind == Kind.WRITE:
            rows = request.stop - request.start
            value = data.view(dtype_from_name(spec.dtype)).reshape((rows, *spec.shape[1:]) if spec.shape else ())
            self._local.write_slice(place, request.start, value)
            return 0, ()
        if request.kind == Kind.LOAD and self._checkpoints is not None:
            value = self._checkpoints.read(*json.loads(data.tobytes()))
            self._local.write(place, np.ascontiguousarray(value, dtype_from_name(spec.dtype)).reshape(spec.shape))
            return 0, ()
        if self._held is None:
            raise CollectiveError("it has no snapshot")
        if request.kind == Kind.HELD:
            return spec.num_bytes, self._held.pieces(place)
        written = np.empty(0, np.uint8)
        if request.kind == Kind.SAVE and self._checkpoints is not None:
            written = np.frombuffer(self._checkpoints.write(data.tobytes(), self._held.pieces(place)), np.uint8)
            if not written.size:  # the first CSX will ask for the bytes
                return 0, ()
        self._held.release(place)
        return written.nbytes, (written,)

    def _take_sum(self, request: Request, data: Bytes, is_private: bool) -> None:
        """Add a sum of another CSX, or set the total that it has added."""
        if request.kind == Kind.TOTAL:
            self._arrivals.set_total(request.index, request.start, data)
            return
        value = data.view(self._arrivals.dtype_of(request.index))
        spec = self.specs[request.index]
        shape = (-1, *spec.shape[1:]) if spec.shape else ()
        self._arrivals.add(request.index, request.stop, request.start, value.reshape(shape), is_private)

    def _send_sum(self, gradient: Gradient, part: Part) -> None:
        """Send rows of a sum to the CSX that adds them."""
        assert gradient.stored is not None
        if gradient.adder == self._rank:
            self._arrivals.add(gradient.stored, part.group, part.start, part.value, part.is_private)
            return
        assert gradient.adder is not None
        self._send([gradient.adder], Request(Kind.SUM, gradient.stored, part.start, part.group), part.value)

    def _send_total(self, index: int, start: int, value: np.ndarray) -> None:
        """Send rows of a total to all other CSX."""
        self._send(self._others, Request(Kind.TOTAL, index, start), value)

    def _send(self, others: list[int], request: Request, value: np.ndarray) -> None:
        """Send rows of a sum or of a total to other CSX."""
        kind = Kind.PLACED_SUM if request.kind == Kind.SUM else Kind.PLACED_TOTAL
        request = replace(request, after=self._version)
        with self.moving("exchange", request.index, len(others) * value.nbytes):
            for rank in self._neighbours.send(self._peers, others, replace(request, kind=kind), value):
                self._peers.ask(rank, request, as_bytes(value))

    def _check(self) -> None:
        self._peers.check()

    def _hold(self) -> Bytes:
        """Take a snapshot of what this CSX owns, for a checkpoint of the first one; return why there is none."""
        try:
            self._held = self._local.snapshot()
        except StoreError as error:
            return np.frombuffer(str(error).encode(), np.uint8)
        for index, place in self._places.items():
            if index not in self._owned:
                self._held.release(place)
        return np.empty(0, np.uint8)
