"""The memory that a step needs: resident variables, streamed weights, values between ops, overhead."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.program import Program, Residence


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of memory that a step adds to the process.

    Attributes:
        resident_bytes: Variables that stay in memory, and all of a store that is mapped into memory.
        window_bytes: Streamed weights, and values that are loaded ahead, at the busiest op.
        activation_bytes: Most bytes of values between ops.
        overhead_bytes: Memory of kernels, queues, allocators and the graph.
        store_bytes: Streamed weights and spilled values in the store.
        spilled_bytes: Spilled values in the store; part of store_bytes.
    """

    resident_bytes: int
    window_bytes: int
    activation_bytes: int
    overhead_bytes: int
    store_bytes: int
    spilled_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The memory that the step adds to the process: all parts except the store."""
        return self.resident_bytes + self.window_bytes + self.activation_bytes + self.overhead_bytes


def plan_memory(program: Program) -> MemoryPlan:
    """Return the memory plan of a Program that was compiled with the outputs of its ops."""
    in_memory = (*program.variables, *(program.stored if program.residence.is_in_place else ()))
    return MemoryPlan(
        resident_bytes=sum(spec.num_bytes for spec in in_memory),
        window_bytes=program.moved_bytes if program.residence is Residence.STORE else 0,
        activation_bytes=program.value_bytes,
        overhead_bytes=program.overhead_bytes,
        store_bytes=0 if program.residence is Residence.HOST_MEMORY else sum(spec.num_bytes for spec in program.stored),
        spilled_bytes=sum(spec.num_bytes for spec in program.spilled),
    )
