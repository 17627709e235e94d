"""One of several CSX, other than the first: opens the run's Program and weight store, then follows the first one."""

from __future__ import annotations

import base64
import json
import logging
from functools import partial
from pathlib import Path

import tensorflow as tf

from cerebras_tensorflow.compiler import cache
from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.estimator.execution.owned_parts import OwnedParts
from cerebras_tensorflow.estimator.execution.several_csx import SETTINGS_FILE, connect, program_folder
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.copy_shares import HeldCopies
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.follower import follow
from cerebras_tensorflow.runtime.inference_follower import follow_inference

logger = logging.getLogger(__name__)


def main(ranks: Collectives, folder: Path) -> None:
    """Compute this CSX's part of each step, or of an evaluation or prediction, until the run ends.

    Args:
        ranks: The group of all CSX.
        folder: Folder of the run, from several_csx.start.

    Raises:
        StoreError: If the Program cannot be read, or the disk has no room for its weights.
        CollectiveError: If another CSX failed.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    described = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    place = folder / program_folder(ranks.rank, described["is_shared"])
    program = cache.load(place)
    if program is None:
        raise StoreError(f"the program in {place} cannot be read")
    config = tf.compat.v1.ConfigProto.FromString(base64.b64decode(described["session_config"]))
    own = Path(described["stores"]) / f"store-{ranks.rank}"
    store = store_choice.open_share(program, ranks.rank, described["store_kind"], own, ranks.size)
    checkpoints = OwnedParts()
    if store is not None and program.owners:
        store = SharedStore(program, ranks.rank, store, partial(connect, ranks, folder), checkpoints)
    logger.info("rank %d of %d follows", ranks.rank, ranks.size)
    train_node, setup = described["train_node"], described["setup"]
    held = None
    if train_node is not None and not program.owners:
        held = HeldCopies(ranks.rank, partial(connect, ranks, folder), checkpoints)
    try:
        if train_node is None:
            follow_inference(ranks, program, store, config, setup, checkpoints)
        else:
            follow(ranks, program, train_node, store, config, setup, checkpoints, held)
    finally:
        if held is not None:
            held.close()
        if store is not None:
            store.close()
