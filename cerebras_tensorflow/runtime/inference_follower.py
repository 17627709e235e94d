"""A CSX other than the first in an evaluation or a prediction: computes tensors of the batches that it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.messages import Message, answer, receive
from cerebras_tensorflow.runtime.csx.orders import END
from cerebras_tensorflow.runtime.follower import take_change
from cerebras_tensorflow.runtime.inference.shared import BATCH_KIND, NOTHING
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore


def follow_inference(
    ranks: Collectives,
    program: Program,
    store: WeightStore | None = None,
    session_config: Any = None,
    setup: str | None = None,
) -> None:
    """Do what the first CSX says until it ends the run.

    Args:
        ranks: The group of all CSX.
        program: The Program of the run.
        store: The weight store of this CSX; None if nothing is streamed.
        session_config: ConfigProto of the session.
        setup: Name of the op that initializes tables; None: there is none.

    Raises:
        CollectiveError: If another CSX failed.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(program.graph_def, name="")
    session = ProgramSession(program, graph, None, store, session_config)
    try:
        if setup is not None:
            session.run(graph.get_operation_by_name(setup))
        while (message := receive(ranks)).kind != END:
            if message.kind == BATCH_KIND:
                answer(ranks, _computed(message, session))
            elif message.kind == NOTHING:
                answer(ranks, message)
            else:
                take_change(message, session, ranks)
    finally:
        session.close()


def _computed(message: Message, session: ProgramSession) -> Message:
    names = message.values["tensors"]
    values = session.run(list(names), message.arrays)
    return Message(BATCH_KIND, {}, {name: np.asarray(value) for name, value in zip(names, values, strict=True)})
