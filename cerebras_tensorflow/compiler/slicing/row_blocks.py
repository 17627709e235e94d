"""The blocks of rows in which blocked_gradients.py computes a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import NodeTable


@dataclass(frozen=True)
class RowBlocks:
    """A gradient in blocks of rows.

    Attributes:
        node: The op that joins the blocks.
        pieces: The op that makes each block.
        inner: All ops that only the gradient needs: those of the blocks, and the one that joins them.
        bounds: Rows at which blocks begin, and the number of rows.
    """

    node: str
    pieces: tuple[str, ...]
    inner: tuple[str, ...]
    bounds: tuple[int, ...]

    def ops_of(self, number: int) -> list[str]:
        """Return the ops of a block."""
        prefix = f"{self.pieces[number]}/"
        return [name for name in self.inner if name == self.pieces[number] or name.startswith(prefix)]


def find_row_blocks(table: NodeTable, name: str, outputs: Mapping[str, Sequence[Output]]) -> RowBlocks | None:
    """Return the blocks that an op joins. None if it joins none, or if their inputs take more memory for longer.

    Args:
        table: A graph from blocked_gradients.py.
        name: The op.
        outputs: Outputs of each op.
    """
    prefix = block_prefix(name)
    pieces = [endpoint.node for endpoint in table.data_inputs(name)[:-1]] if table.nodes[name].op == "ConcatV2" else []
    if not pieces or not all(piece.startswith(prefix) for piece in pieces):
        return None
    inner, pending = [name], list(pieces)
    while pending:
        current = pending.pop()
        inner.append(current)
        pending.extend(e.node for e in table.inputs[current] if e.node.startswith(prefix) and e.node not in inner)
    whole = outputs[name][0]
    assert whole.shape is not None
    bounds = (*(int(piece.removeprefix(prefix)) for piece in pieces), whole.shape[0])
    blocks = RowBlocks(name, tuple(pieces), tuple(dict.fromkeys(inner)), bounds)
    return blocks if _input_bytes(table, blocks, outputs) <= whole.num_bytes else None


def block_prefix(name: str) -> str:
    """Return how the names of a gradient's blocks begin. The first row of the block follows."""
    return f"{name}/cs_block_"


def _input_bytes(table: NodeTable, blocks: RowBlocks, outputs: Mapping[str, Sequence[Output]]) -> int:
    """Return the bytes that wait for the update because the blocks are computed there [B].

    With tied embeddings, the inputs of the product wait for the whole backward pass. Otherwise none wait.
    """
    ops = {name: table.nodes[name].op for name in blocks.inner}
    if "UnsortedSegmentSum" not in ops.values():
        return 0
    of_products = [name for name, op in ops.items() if op in ("MatMul", "Slice")]
    taken = {e for name in of_products for e in table.data_inputs(name) if e.node not in ops}
    return sum(outputs[e.node][e.port].num_bytes for e in taken if e.port < len(outputs.get(e.node, ())))
