"""A step of micro-batches that does not fit into its budget names a budget that both of its parts fit into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebras_tensorflow.compiler import step
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.errors import MemoryBudgetError
from cerebras_tensorflow.graph.nodes import GraphDef


@pytest.mark.parametrize(("gradient_bytes", "update_bytes", "named"), [(2, 1, "2 B"), (1, 2, "2 B"), (0, 1, "1 B")])
def test_a_refusal_names_the_budget_of_the_larger_part(
    gradient_bytes: int, update_bytes: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient, update = GraphDef(), GraphDef()
    needed = {id(gradient): gradient_bytes, id(update): update_bytes}

    def compile_part(part: Any, *_: Any) -> None:
        num_bytes = needed[id(part.graph_def)]
        if num_bytes:
            raise MemoryBudgetError(f"needs {num_bytes} B", num_bytes)

    monkeypatch.setattr(step, "_compile_part", compile_part)
    whole: Any = SimpleNamespace(weights=[], train_node="train", sources=[], micro_batches=2, num_csx=1)
    parts: Any = SimpleNamespace(
        stored={}, gradients=[], gradient=gradient, update=update,
        gradient_roots=[], update_roots=[], update_sources=[],
    )  # fmt: skip
    with pytest.raises(MemoryBudgetError, match=named):
        step._compile_both(whole, parts, "weight_streaming", StreamingOptions(), {})
