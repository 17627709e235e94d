"""Adds the sums of gradients that arrive from all CSX, in the order of the tree: the bits of one CSX.

One CSX adds the sums of a gradient: its owner, or, if all CSX need the total, the one that the compiler chose. The sum
of each group of micro-batches arrives in pieces of some rows. The adder adds the same rows of the groups in the order
of their numbers; a piece that is too early waits. So open sums take at most one place for each level of the tree.

Who waits for whom:

- A part waits until this CSX has done the updates that its sender has done, so that no total changes before its update
  has read it. This CSX ends its update without any later part.
- A part of group g waits for the part of group g - 1 with the same rows. A CSX sends the parts of one gradient piece by
  piece, its groups in ascending order, and waits for nothing but these answers. Groups are in the order of the CSX. So
  the first CSX never waits, the second one only for the first, and so on: there is no circle.
- The gradients may come in any order, and in a different one on each CSX: a CSX that waits at one gradient waits for a
  CSX before it, which reaches that gradient without waiting for the later one.
- A total that all CSX need is sent on by the thread that has added the last part. Its receiver has sent a part of the
  same step, so it has ended its last update, and only writes.
- `finish` waits for the totals that the update takes. Every CSX sends all its parts before its own `finish`.

Each wait ends when the store is closed, when an earlier part failed here, or with the error of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.graph.micro_batches import EVERY, Gradient, MicroBatches, sum_dtype
from cerebras_tensorflow.graph.program import dtype_from_name
from cerebras_tensorflow.runtime.host.links import CHECK_S
from cerebras_tensorflow.runtime.micro_batches.share import Share
from cerebras_tensorflow.runtime.micro_batches.sums import divided, pieces_of
from cerebras_tensorflow.runtime.micro_batches.tree import absorbed
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore


class Arrivals:
    """Adds the sums that arrive at one CSX.

    Args:
        plan: The gradients.
        rank: Number of this CSX.
        store: Holds the sums and the totals.
        send_total: Sends rows of a total to all other CSX, given its index, the first row and the rows.
        check: Raises the error of the run, if one is known.
        in_place: Whether the store's own memory can be added to, without a copy.
    """

    def __init__(
        self,
        plan: MicroBatches,
        rank: int,
        store: WeightStore,
        send_total: Callable[[int, int, np.ndarray], None],
        check: Callable[[], None],
        in_place: bool = False,
    ) -> None:
        self._store = store
        self._send_total = send_total
        self._check = check
        self._in_place = in_place
        self._count = plan.count
        self._rank = rank
        self._taken = absorbed([group for groups in Share.of(plan, rank).groups for group in groups])
        self._depths = [sum(1 - taken for taken in self._taken[:number]) for number in range(len(self._taken))]
        self._gradients = {
            one.stored: one for one in plan.gradients if one.adder is not None and one.stored is not None
        }
        self._next: dict[tuple[int, int], int] = {}  # (total, first row) -> number of the next group
        self._num_left = 0  # pieces of totals that this CSX still needs
        self._needed = sum(
            len(pieces_of(store.specs[index]))
            for index, one in self._gradients.items()
            if one.adder == rank or one.owner == EVERY
        )
        self._buffers = Buffers()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._start()

    def add(self, index: int, group: int, start: int, value: np.ndarray, is_private: bool) -> None:
        """Add rows of the sum of a group to the total, when it is their turn.

        Args:
            index: Index of the total.
            group: Number of the group.
            start: The first row.
            value: The rows. They must not change afterwards.
            is_private: Whether nobody else reads their memory, so that it may be overwritten.

        Raises:
            CollectiveError: If this CSX does not add these rows, or the run ends.
            StoreError: If the store failed.
        """
        gradient = self._gradients.get(index)
        key = (index, start)
        if gradient is None or gradient.adder != self._rank or key not in self._next or group >= len(self._taken):
            raise CollectiveError(f"it does not add group {group} of rows {start} of weight {index}")
        self._wait_for(lambda: self._next[key] >= group)
        if self._next[key] > group:
            raise CollectiveError(f"it has group {group} of rows {start} of weight {index} already")
        try:
            self._add(gradient, group, start, value, is_private)
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
            raise
        with self._changed:
            self._next[key] += 1
            self._num_left -= group == len(self._taken) - 1
            self._changed.notify_all()

    def set_total(self, index: int, start: int, data: Bytes) -> None:
        """Set rows of a total that another CSX has added.

        Raises:
            CollectiveError: If no other CSX adds this total for all.
            StoreError: If the store failed.
        """
        gradient = self._gradients.get(index)
        if gradient is None or gradient.adder == self._rank or gradient.owner != EVERY:
            raise CollectiveError(f"it takes no total of weight {index}")
        spec = self._store.specs[index]
        shape = (-1, *spec.shape[1:]) if spec.shape else ()
        self._store.write_slice(index, start, data.view(dtype_from_name(spec.dtype)).reshape(shape))
        with self._changed:
            self._num_left -= 1
            self._changed.notify_all()

    def dtype_of(self, index: int) -> np.dtype:
        """Return the dtype of the sums of a gradient, given the index of its total."""
        gradient = self._gradients.get(index)
        if gradient is None:
            raise CollectiveError(f"it adds no sums of weight {index}")
        return dtype_from_name(sum_dtype(gradient.dtype))

    def finish(self) -> None:
        """Wait until all totals are here that the update of this CSX takes.

        Raises:
            CollectiveError: If another CSX failed.
            StoreError: If the store failed.
        """
        self._wait_for(lambda: self._num_left == 0)
        self._start()

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        """Expect the parts of the next step. They wait for the update that follows."""
        with self._changed:
            self._num_left = self._needed
            for index, gradient in self._gradients.items():
                if gradient.adder == self._rank:
                    self._next.update({(index, start): 0 for start, _ in pieces_of(self._store.specs[index])})

    def _add(self, gradient: Gradient, group: int, start: int, value: np.ndarray, is_private: bool) -> None:
        """Add rows to the sums that wait, and let the result wait, or complete the total."""
        assert gradient.stored is not None
        spec = self._store.specs[gradient.stored]
        stop = start + (value.shape[0] if spec.shape else 1)
        depth, taken = self._depths[group], self._taken[group]
        room = value
        for index in reversed(gradient.waiting[depth - taken : depth]):
            if self._in_place and index == gradient.waiting[depth - taken]:  # the last addition
                room = self._store.lend(index, start, stop)[:-1].reshape(value.shape)
            elif not is_private:
                room = self._buffers.take(value.nbytes).view(value.dtype).reshape(value.shape)
                is_private = True  # the next additions use the same room
            value = np.add(self._store.view_slice(index, start, stop), value, out=room)
        if group < len(self._taken) - 1:
            self._store.write_slice(gradient.waiting[depth - taken], start, value)
            return
        total = divided(value, self._count, value).astype(dtype_from_name(spec.dtype), copy=False)
        if gradient.owner == EVERY:
            self._send_total(gradient.stored, start, total)
        self._store.write_slice(gradient.stored, start, total)

    def _wait_for(self, is_done: Callable[[], bool]) -> None:
        """Wait for a condition.

        Raises:
            CollectiveError: If another CSX failed, or this one ends.
            StoreError: If the store failed.
        """
        with self._changed:
            while not is_done():
                if self._failure is not None:
                    raise self._failure
                if self._is_closed:
                    raise CollectiveError(f"rank {self._rank} has ended")
                if not self._changed.wait(CHECK_S):
                    self._check()
