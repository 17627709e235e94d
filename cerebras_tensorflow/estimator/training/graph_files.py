"""A run's graph for TensorFlow's tools: graph.pbtxt, the event file's graph, a .meta beside each checkpoint."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from cerebras_tensorflow.estimator.event_writers import event_writer
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.saver.names import H5_SUFFIX, META_SUFFIX, step_of

GRAPH_FILE = "graph.pbtxt"


class GraphFiles:
    """Writes the graph of a pipelined training run, in the thread that writes its checkpoints.

    The graph is the one in which model_fn was called, with placeholders `cs_input/N` for the batch, and it is final:
    it is encoded once for all checkpoints. Of weight streaming nothing is written: its graph is not the one that runs,
    and encoding it would take memory beyond the plan.

    Args:
        graph: The graph; nothing adds to it any more when the first checkpoint is written.
        model_dir: Folder of graph.pbtxt and of the event file.
        saver: The graph's tf.compat.v1.train.Saver.
        has_files: Whether graph.pbtxt and .meta are written; the event file has graph and saves in any case.
    """

    def __init__(self, graph: tf.Graph, model_dir: str, saver: Any, has_files: bool = True) -> None:
        self._graph = graph
        self._model_dir = model_dir
        self._saver = saver
        self._has_files = has_files
        self._meta: bytes | None = None
        self._is_encoded = False

    def write_beside(self, checkpoint: str) -> None:
        """Write the .meta of a checkpoint in TensorFlow's format, and, the first time, graph.pbtxt.

        Raises:
            CheckpointError: If a file cannot be written.
        """
        with self._graph.as_default():  # which an event file gets when it begins
            events = event_writer(self._model_dir)
        if self._has_files and not self._is_encoded:
            self._is_encoded = True
            try:
                self._encode()
            except (ValueError, DecodeError) as error:  # beyond 2 GB
                run_log.warning("The graph is not written beside the checkpoints: %s", error)
        if self._meta is not None and not checkpoint.endswith(H5_SUFFIX):
            write_file(checkpoint + META_SUFFIX, self._meta)
        saved = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.CHECKPOINT, checkpoint_path=checkpoint)
        events.add_session_log(saved, step_of(checkpoint))

    def _encode(self) -> None:
        saver_def = getattr(self._saver, "saver_def", None)  # a saver of objects has none
        with self._graph.as_default():  # or TensorFlow 2 refuses
            meta = tf.compat.v1.train.export_meta_graph(graph=self._graph, saver_def=saver_def)
        # The protocol buffer's own text: text_format takes 7 times as long.
        write_file(os.path.join(self._model_dir, GRAPH_FILE), str(meta.graph_def).encode())
        self._meta = meta.SerializeToString()
