"""A CSX other than the first: computes its micro-batches and the update of each step, as the first one tells it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.checkpoint_files import READ, CheckpointFiles
from cerebras_tensorflow.runtime.csx.copy_shares import COPY, HeldCopies
from cerebras_tensorflow.runtime.csx.messages import Message, receive
from cerebras_tensorflow.runtime.csx.orders import END, EXTEND, STEP, OtherCsx
from cerebras_tensorflow.runtime.csx.variables import VARIABLE, VARIABLES, received
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore


def follow(
    ranks: Collectives,
    program: Program,
    train_node: str,
    store: WeightStore | None = None,
    session_config: Any = None,
    setup: str | None = None,
    checkpoints: CheckpointFiles | None = None,
    held: HeldCopies | None = None,
) -> None:
    """Do what the first CSX says until it ends the run.

    Args:
        ranks: The group of all CSX.
        program: The Program of the run.
        train_node: Name of the train op.
        store: The weight store of this CSX; None if nothing is streamed.
        session_config: ConfigProto of the session.
        setup: Name of the op that initializes tables; None: there is none.
        checkpoints: Reads checkpoints; None: the first CSX sends all values.
        held: Holds copies of variables for checkpoints; None: the first CSX copies all.

    Raises:
        CollectiveError: If another CSX failed.
    """
    assert program.micro_batches is not None
    csx = OtherCsx(ranks, program.micro_batches)
    session = ProgramSession(program, imported(program), train_node, store, session_config, None, csx)
    with prepared(session, setup):
        while (message := receive(ranks)).kind != END:
            if message.kind == STEP:
                csx.use(message)
                session.run(session.graph.get_operation_by_name(train_node))
            elif message.kind == COPY:
                assert held is not None, "the first CSX was told that this one copies variables"
                names = message.values["names"]
                if held.has_room(message, session.snapshot_bytes(names)):
                    held.hold(message, *session.copy(names))
            else:
                take_change(message, session, ranks, checkpoints)


def imported(program: Program) -> tf.Graph:
    """Return the graph of a Program."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(program.graph_def, name="")
    return graph


@contextmanager
def prepared(session: ProgramSession, setup: str | None) -> Iterator[None]:
    """Run the op that initializes tables, if there is one, and close the session at the end."""
    try:
        if setup is not None:
            session.run(session.graph.get_operation_by_name(setup))
        yield
    finally:
        session.close()


def take_change(
    message: Message, session: ProgramSession, ranks: Collectives, checkpoints: CheckpointFiles | None
) -> None:
    """Set a variable, or add ops, as the first CSX says."""
    if message.kind == READ:
        assert checkpoints is not None, "the first CSX was told that this one reads checkpoints"
        name = message.values["name"]
        if name:
            session.load(name, checkpoints.read(message.values["path"], message.values["key"]))
        else:
            checkpoints.close()
    elif message.kind in (VARIABLE, VARIABLES):
        for name, value in received(message, ranks).items():
            session.load(name, value)
    else:
        assert message.kind == EXTEND, f"unknown message {message.kind}"
        session.add(GraphDef.FromString(message.arrays["graph"].tobytes()))
