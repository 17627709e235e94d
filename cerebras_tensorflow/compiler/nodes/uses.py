"""The uses of one streamed variable in a step."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.accesses.ordering import first_reads
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.variables import Variable, VariableAccess


@dataclass(frozen=True)
class VariableUses:
    """The uses of one streamed variable.

    Attributes:
        index: Index of the variable in Program.stored.
        variable: The variable.
        before: Reads of the value that the step starts with.
        after: Reads of the updated value.
    """

    index: int
    variable: Variable
    before: tuple[VariableAccess, ...]
    after: tuple[VariableAccess, ...]

    @classmethod
    def of(cls, index: int, variable: Variable, table: NodeTable) -> VariableUses:
        """Return the uses of a variable in a graph."""
        before, after = first_reads(table, variable)
        return cls(index, variable, tuple(before), tuple(after))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the variable. Only variables of a known shape are streamed."""
        assert self.variable.shape is not None
        return self.variable.shape

    @property
    def reads(self) -> list[VariableAccess]:
        """Reads of the whole value that the step starts with. Loads replace them."""
        return [access for access in self.before if access.op == "ReadVariableOp"]

    @property
    def gathers(self) -> list[VariableAccess]:
        """Reads of single rows of the value that the step starts with."""
        return [access for access in self.before if access.op == "ResourceGather"]

    @property
    def shape_queries(self) -> list[VariableAccess]:
        """Ops that ask for the variable's shape."""
        return [access for access in (*self.before, *self.after) if access.op == "VariableShape"]

    @property
    def reads_after(self) -> list[VariableAccess]:
        """Reads of the updated value, whole or in rows."""
        return [access for access in self.after if access.op != "VariableShape"]

    def value_uses(self, table: NodeTable) -> list[tuple[VariableAccess, str]]:
        """Return pairs (read, op that uses the value read), for the value that the step starts with."""
        return [
            (read, user)
            for read in self.reads
            for user in table.consumers[read.node]
            if any(endpoint.node == read.node for endpoint in table.data_inputs(user))
        ]

    def row_bytes(self) -> int:
        """Return the bytes of one row. The variable must not be a scalar."""
        return self.variable.num_bytes // self.shape[0]
