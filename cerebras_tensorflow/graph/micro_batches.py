"""Describes steps in micro-batches: the gradients and other values that pass from the micro-batches to the update.

Such a step has two parts in one graph. The first part runs once for each micro-batch and ends in the gradients. The
second part is the update; it runs once, on the totals.
"""

from __future__ import annotations

from dataclasses import dataclass

GRADIENT_TOKEN = "cs_gradient"  # a call that takes (index, values) or (index, values, rows) of one micro-batch
BATCH = "cs_input/"  # scope of the placeholders that take the batch
TOTAL = "cs_total/"  # scope of the totals in the update
CARRIED = "cs_carried/"  # scope of other values of the micro-batches in the update
EVERY = -1  # owner of what every CSX holds
UPDATE = "cs_update/"  # prefix of the update's copies of nodes that both parts use


@dataclass(frozen=True)
class Mark:
    """A gradient with respect to a variable that model_fn computes.

    Attributes:
        variable: Name of the variable's VarHandleOp.
        values: Name of the Identity op that marks the gradient.
        rows: For the gradient of an embedding: the Identity op of its row numbers. None: the gradient is dense.
    """

    variable: str
    values: str
    rows: str | None = None


@dataclass(frozen=True)
class Gradient:
    """A gradient whose total over all micro-batches goes into the update.

    Attributes:
        mark: The mark.
        sink: The op that passes the gradient of one micro-batch to the runtime.
        dtype: NumPy's name of its dtype.
        totals: Placeholders of the total: (values,) or (values, rows). Empty: the total is in the store.
        stored: Index of the total in Program.stored; None: in host memory.
        partials: Indices, in Program.stored, of the partial sums of this CSX's micro-batches.
        owner: The CSX whose update takes the total; EVERY: all of them.
        adder: The CSX that adds the sums of all CSX as they arrive. None: they are added after the last micro-batch.
        waiting: On the adder: indices, in Program.stored, of sums of several CSX that wait for a further one. The first
            index may be that of the total.
    """

    mark: Mark
    sink: str
    dtype: str
    totals: tuple[str, ...]
    stored: int | None = None
    partials: tuple[int, ...] = ()
    owner: int = EVERY
    adder: int | None = None
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True)
class Carried:
    """A value of the micro-batches, other than a gradient, that the update takes.

    Attributes:
        tensor: Name of the tensor in the first part.
        placeholder: Op of the update that takes it.
        is_mean: True: the mean over all micro-batches. False: the value of the first one.
    """

    tensor: str
    placeholder: str
    is_mean: bool


@dataclass(frozen=True)
class MicroBatches:
    """How a Program computes a step in micro-batches.

    Attributes:
        count: Micro-batches of one step.
        gradients: The gradients.
        carried: Other values that the update takes.
        num_first: Number of ops of the first part. They come first in Program.order.
        num_csx: CSX that share them.
    """

    count: int
    gradients: tuple[Gradient, ...]
    carried: tuple[Carried, ...]
    num_first: int = 0
    num_csx: int = 1


def bounds_of(count: int, num_csx: int) -> tuple[int, ...]:
    """Return the first micro-batch of each CSX, then their number: consecutive shares, as even as possible.

    >>> bounds_of(4, 2), bounds_of(5, 4)
    ((0, 2, 4), (0, 1, 2, 3, 5))
    """
    return tuple(count * rank // num_csx for rank in range(num_csx + 1))


def sum_dtype(dtype: str) -> str:
    """Return the dtype in which values of a dtype are added: float32 for 16-bit floats.

    >>> sum_dtype("bfloat16"), sum_dtype("float64")
    ('float32', 'float64')
    """
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def is_summary(op: str) -> bool:
    """Whether an op of this type makes a summary."""
    return op.endswith(("Summary", "SummaryV2"))


def is_mean_over_micro_batches(is_floating: bool, rank: int | None) -> bool:
    """Whether a fetched or summarized value is the mean over micro-batches; if not, it is the first one's value."""
    return is_floating and rank == 0
