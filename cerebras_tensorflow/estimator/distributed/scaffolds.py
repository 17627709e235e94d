"""One Scaffold for the replicas of a strategy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

train_v1 = tf.compat.v1.train
_GROUPED = ("init_op", "local_init_op", "summary_op")


def combine_scaffolds(grouped: Any, strategy: Any) -> Any:
    """Combine the Scaffolds of all replicas into one.

    Its ops run on all replicas. Its init_fn and Saver come from the first replica that has one.
    """
    scaffolds = strategy.experimental_local_results(grouped)
    fields: dict[str, Any] = {}
    for name in _GROUPED:
        ops = _given(scaffolds, name)
        fields[name] = strategy.group(ops) if ops else None
    feeds: dict[Any, Any] = {}
    for part in _given(scaffolds, "init_feed_dict"):
        feeds.update(part)
    return train_v1.Scaffold(
        **fields,
        ready_op=_missing_names(grouped, strategy, lambda scaffold: scaffold.ready_op),
        ready_for_local_init_op=_missing_names(grouped, strategy, _ready_for_local_init),
        init_feed_dict=feeds or None,
        init_fn=_first([_user_init_fn(scaffold) for scaffold in scaffolds]),
        saver=_first([scaffold.saver for scaffold in scaffolds]),
    )


def _given(scaffolds: Any, name: str) -> list[Any]:
    return [value for value in (getattr(scaffold, name) for scaffold in scaffolds) if value is not None]


def _first(values: list[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _user_init_fn(scaffold: Any) -> Any:
    """Return the init_fn(scaffold, session) of a Scaffold."""
    init_fn = scaffold.init_fn  # Scaffold has wrapped it: it takes the session only
    return None if init_fn is None else lambda _, session: init_fn(session)


def _ready_for_local_init(scaffold: Any) -> Any:
    if scaffold.ready_for_local_init_op is not None:
        return scaffold.ready_for_local_init_op
    return train_v1.Scaffold.get_or_default(
        "ready_for_local_init_op",
        tf.compat.v1.GraphKeys.READY_FOR_LOCAL_INIT_OP,
        lambda: tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables()),
    )


def _missing_names(grouped: Any, strategy: Any, get: Any) -> Any:
    """Return the names of variables that some replica has not initialized; None if no replica has the op."""
    values = strategy.extended.call_for_each_replica(get, args=(grouped,))
    parts = [part for part in strategy.experimental_local_results(values) if part is not None]
    return tf.concat(parts, 0) if len(parts) > 1 else _first(parts)
