"""A run's graph for TensorFlow's tools: graph.pbtxt, the event file's graph, a .meta beside each checkpoint."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.event_writers import EventFile
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.saver.model_dir import beside
from cerebras_tensorflow.saver.names import H5_SUFFIX, META_SUFFIX, step_of

GRAPH_FILE = "graph.pbtxt"


class GraphFiles:
    """Writes the graph of a pipelined training run, in the thread that writes its checkpoints.

    This is the graph of the call of model_fn, with placeholders `cs_input/N` for the batch. It no longer changes, so we
    encode it once for all checkpoints. Weight streaming writes no graph: it runs another graph, and the encoding would
    take more memory than planned.

    Args:
        graph: The graph; it must not change after the first checkpoint.
        work_folder: Folder of graph.pbtxt and of the event file.
        saver: The graph's tf.compat.v1.train.Saver.
        has_files: Whether to write graph.pbtxt and .meta. The event file always gets the graph and the saves.
    """

    def __init__(self, graph: tf.Graph, work_folder: str, saver: Any, has_files: bool = True) -> None:
        self._graph = graph
        self._folder = work_folder
        self._saver = saver
        self._has_files = has_files
        self._meta: bytes | None = None
        self._is_encoded = False
        self._has_told = False

    def write_beside(self, checkpoint: str) -> None:
        """Write the .meta of a checkpoint in TensorFlow's format; the first call also writes graph.pbtxt.

        If writing fails, log one warning: the checkpoint is complete without these files.
        """
        try:
            self._write_files(checkpoint)
        except CheckpointError as error:
            if not self._has_told:
                self._has_told = True
                run_log.warning("The graph could not be written (%s). The checkpoint itself is complete.", error)
        saved = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.CHECKPOINT, checkpoint_path=checkpoint)
        with self._graph.as_default():  # a new event file starts with the current graph
            EventFile(self._folder).add_session_log(saved, step_of(checkpoint))

    def _write_files(self, checkpoint: str) -> None:
        if self._has_files and not self._is_encoded:
            self._is_encoded = True
            try:
                self._encode()
            except (ValueError, DecodeError) as error:  # beyond 2 GB
                run_log.warning("Cannot write the graph with the checkpoints: %s", error)
        if self._meta is not None and not checkpoint.endswith(H5_SUFFIX):
            beside.write(checkpoint + META_SUFFIX, self._meta)

    def _encode(self) -> None:
        saver_def = getattr(self._saver, "saver_def", None)  # None for tf.train.Checkpoint
        with self._graph.as_default():  # TensorFlow 2 requires it
            meta = tf.compat.v1.train.export_meta_graph(graph=self._graph, saver_def=saver_def)
        self._meta = meta.SerializeToString()
        # str() of the message: text_format takes 7 times as long.
        write_file(os.path.join(self._folder, GRAPH_FILE), str(meta.graph_def).encode())
