"""Exporters: when train_and_evaluate exports the model, and how many exports it keeps."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.estimator.user_functions import parameters_of
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.objects.store import Bucket

_TIMESTAMP = re.compile(r"\d{10}")  # name of an export


class Exporter:
    """Decides whether to export after an evaluation. A subclass implements both members."""

    @property
    def name(self) -> Any:
        """Name of the exporter. The exports go to `<model_dir>/export/<name>`."""

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """Export if it is due.

        Args:
            estimator: The estimator.
            export_path: Folder of the exports.
            checkpoint_path: The evaluated checkpoint.
            eval_result: Its metrics.
            is_the_final_export: Whether training has ended.

        Returns:
            Path of the export, or None.
        """


class FinalExporter(Exporter):
    """Exports once, after training.

    Args:
        name: Name of the exporter.
        serving_input_receiver_fn: Returns a ServingInputReceiver.
        assets_extra: Path in assets.extra -> file.
        as_text: Whether the SavedModel is text.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        self._name = name
        self._exported = _Exported(serving_input_receiver_fn, assets_extra, as_text)

    @property
    def name(self) -> str:
        """Name of the exporter."""
        return self._name

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """Export if training has ended; see Exporter.export."""
        if not is_the_final_export:
            return None
        run_log.info("Performing the final export in the end of training.")
        return self._exported.write(estimator, export_path, checkpoint_path)


class LatestExporter(Exporter):
    """Exports after each evaluation.

    Args:
        name, serving_input_receiver_fn, assets_extra, as_text: As FinalExporter.
        exports_to_keep: Number of newest exports to keep; None: all.

    Raises:
        ValueError: If exports_to_keep is not positive.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        self._name = name
        self._exported = _Exported(serving_input_receiver_fn, assets_extra, as_text)
        self._keep = _checked_keep(exports_to_keep)

    @property
    def name(self) -> str:
        """Name of the exporter."""
        return self._name

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """Export, and remove the oldest exports; see Exporter.export."""
        path = self._exported.write(estimator, export_path, checkpoint_path)
        _retire(export_path, self._keep)
        return path


def loss_is_smaller(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
    """Whether the current loss is smaller than the best loss.

    Raises:
        ValueError: If a result is empty or has no loss.
    """
    for name, result in (("best_eval_result", best_eval_result), ("current_eval_result", current_eval_result)):
        if not result or "loss" not in result:
            raise ValueError(f"{name} cannot be empty or no loss is found in it.")
    return bool(best_eval_result["loss"] > current_eval_result["loss"])


class BestExporter(Exporter):
    """Exports after the first evaluation of a process, and after each one that is better than all before it.

    Args:
        name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep: As LatestExporter.
        event_file_pattern: Without effect. TensorFlow 2.15 reads the event files of earlier runs, but exports after the
            first evaluation whatever they say.
        compare_fn: compare_fn(best_eval_result, current_eval_result) -> whether the current one is better. Default:
            lower loss.

    Raises:
        ValueError: If compare_fn is None or takes other arguments, or exports_to_keep is not positive.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = loss_is_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        self._name = name
        self._exported = _Exported(serving_input_receiver_fn, assets_extra, as_text)
        self._keep = _checked_keep(exports_to_keep, "a positive number")
        if compare_fn is None:
            raise ValueError("`compare_fn` must not be None.")
        _check_compare_fn(compare_fn)
        self._is_better = compare_fn
        self._best: Any = None

    @property
    def name(self) -> str:
        """Name of the exporter."""
        return self._name

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """Export if the result is the best since this exporter was made; see Exporter.export."""
        if self._best is not None and not self._is_better(best_eval_result=self._best, current_eval_result=eval_result):
            return None
        run_log.info("Performing best model export.")
        self._best = eval_result
        path = self._exported.write(estimator, export_path, checkpoint_path)
        _retire(export_path, self._keep)
        return path


def _checked_keep(number: int | None, expected: str = "positive number") -> int | None:
    if number is not None and number <= 0:
        raise ValueError(f"`exports_to_keep`, if provided, must be {expected}. Got {number}")
    return number


def _check_compare_fn(compare_fn: Any) -> None:
    if not callable(compare_fn):
        raise TypeError(f"unsupported callable: compare_fn must be a function of two results, given: {compare_fn}")
    names, taken = ("best_eval_result", "current_eval_result"), parameters_of(compare_fn) - {"self"}
    for name in names:
        if name not in taken:
            raise ValueError(f"compare_fn ({compare_fn}) must include {name} argument.")
    unknown = sorted(taken - {*names, "**"})
    if unknown:
        raise ValueError(f"compare_fn ({compare_fn}) has following not expected args: {unknown}")


@dataclass(frozen=True)
class _Exported:
    """The fixed arguments of export_saved_model."""

    receiver_fn: Callable[[], Any] | None
    assets: Mapping[str, str] | None
    as_text: bool

    def write(self, estimator: Any, export_path: str, checkpoint_path: str) -> Any:
        """Export a checkpoint; return the path."""
        return estimator.export_saved_model(
            export_path,
            self.receiver_fn,
            assets_extra=self.assets,
            as_text=self.as_text,
            checkpoint_path=checkpoint_path,
        )


def _retire(folder: str, keep: int | None) -> None:
    """Remove the oldest exports of a folder or URL."""
    if keep is None:
        return
    location = object_location(folder)
    bucket = None if location is None else Bucket(location)
    if location is None or bucket is None:
        entries: Sequence[str] = [item.name for item in os.scandir(folder) if item.is_dir(follow_symlinks=False)]
    else:
        entries = bucket.children(location.key)[0]
    for entry in sorted(entry for entry in entries if _TIMESTAMP.fullmatch(entry))[:-keep]:
        if location is None or bucket is None:
            shutil.rmtree(os.path.join(folder, entry))
        else:
            bucket.delete([item.key for item in bucket.list(f"{location.key}/{entry}")])
