"""A CSX other than the first in an evaluation or a prediction: computes tensors of the batches that it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.checkpoint_files import CheckpointFiles
from cerebras_tensorflow.runtime.csx.messages import Message, answer, receive
from cerebras_tensorflow.runtime.csx.orders import END
from cerebras_tensorflow.runtime.follower import imported, prepared, take_change
from cerebras_tensorflow.runtime.inference.shared import BATCH_KIND, NOTHING
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore


def follow_inference(
    ranks: Collectives,
    program: Program,
    store: WeightStore | None = None,
    session_config: Any = None,
    setup: str | None = None,
    checkpoints: CheckpointFiles | None = None,
) -> None:
    """Do what the first CSX says until it ends the run.

    Args:
        ranks: The group of all CSX.
        program: The Program of the run.
        store: The weight store of this CSX; None if nothing is streamed.
        session_config: ConfigProto of the session.
        setup: Name of the op that initializes tables; None: there is none.
        checkpoints: Reads checkpoints; None: the first CSX sends all values.

    Raises:
        CollectiveError: If another CSX failed.
    """
    session = ProgramSession(program, imported(program), None, store, session_config)
    with prepared(session, setup):
        while (message := receive(ranks)).kind != END:
            if message.kind == BATCH_KIND:
                answer(ranks, _computed(message, session))
            elif message.kind == NOTHING:
                answer(ranks, message)
            else:
                take_change(message, session, ranks, checkpoints)


def _computed(message: Message, session: ProgramSession) -> Message:
    names = message.values["tensors"]
    values = session.run(list(names), message.arrays)
    return Message(BATCH_KIND, {}, {name: np.asarray(value) for name, value in zip(names, values, strict=True)})
