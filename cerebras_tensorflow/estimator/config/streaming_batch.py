"""get_streaming_batch_size (1.9): how many samples an input_fn puts into a batch when several CSX share it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from cerebras_tensorflow.graph.micro_batches import bounds_of

_SHARING: contextvars.ContextVar[tuple[int, int]] = contextvars.ContextVar("cs_sharing", default=(1, 1))


def get_streaming_batch_size(batch_size: int, global_rank: int | None = None) -> int:
    """Return the number of samples in a batch of the process that calls an input_fn.

    Here one process reads the stream of all CSX, as the user node of the original, so it gets the whole batch. Set
    `global_batch_size` to the same number in the input section of the params; the CSX then split each batch.

    Args:
        batch_size: Samples of the global batch.
        global_rank: Number of an input worker: the result is then the share of its CSX. Worker i serves CSX i div W,
            with W workers for each CSX (`num_workers_per_csx`). CSX with more numbers get what is left over.

    Raises:
        ValueError: If batch_size is smaller than the number of CSX, or there is no such worker.

    Source:
        The function of release 1.9. Which CSX get the remainder is not published.
    """
    num_csx, workers = _SHARING.get()
    if batch_size < num_csx:
        raise ValueError(f"get_streaming_batch_size: {batch_size} samples for {num_csx} CSX: each needs one")
    if global_rank is None:
        return batch_size
    if not 0 <= global_rank < num_csx * workers:
        raise ValueError(
            f"get_streaming_batch_size: global_rank is {global_rank}, expected 0 to {num_csx * workers - 1}: "
            f"{num_csx} CSX have {workers} input worker(s) each"
        )
    bounds = bounds_of(batch_size, num_csx)
    csx = global_rank // workers
    return bounds[csx + 1] - bounds[csx]


@contextlib.contextmanager
def sharing(num_csx: int, workers_per_csx: int) -> Iterator[None]:
    """Let get_streaming_batch_size know the run's CSX, during the call of an input_fn."""
    token = _SHARING.set((num_csx, max(1, workers_per_csx)))
    try:
        yield
    finally:
        _SHARING.reset(token)
