"""Checkpoints in object storage: a real S3 server (moto's) on loopback, behind a proxy that can fail."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError, SettingsError
from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver import cli, tf_h5_saver, torch_state
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader, open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects import read_ahead as reader_module
from cerebras_tensorflow.saver.objects import sender as sender_module
from cerebras_tensorflow.saver.objects import store as store_module
from cerebras_tensorflow.saver.objects import writer as writer_module
from cerebras_tensorflow.saver.objects.store import Bucket
from cerebras_tensorflow.saver.objects.sweep import sweep
from tests.unit.conftest import S3_SECRET as SECRET
from tests.unit.faulty_proxy import FAULTS, FaultyProxy

VALUES: dict[str, Any] = {
    "dense/kernel": np.arange(700_000, dtype=np.float32).reshape(7, 1000, 100),
    "half": np.arange(5).astype(ml_dtypes.bfloat16),
    "flag": np.array([[True], [False]]),
    "empty": np.zeros((0, 3)),
    "step": np.int64(7),
    "text": np.array([b"a", "h\u00e9".encode()], object),
}


def place(url: str) -> ObjectLocation:
    location = object_location(url)
    assert location is not None
    return location


def keys(url: str = "s3://bucket/run") -> list[str]:
    location = place(url)
    return sorted(item.key for item in Bucket(location).list(location.key))


def check(url: str, values: dict[str, Any]) -> None:
    loaded = tf_h5_saver.load(url)
    assert set(loaded) == set(values)
    for name, value in values.items():
        value = np.asarray(value)
        assert (loaded[name].dtype, loaded[name].shape) == (value.dtype, value.shape)
        assert loaded[name].tolist() == value.tolist()


def test_a_saved_checkpoint_loads_without_listing_the_bucket(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf_h5_saver.save("s3://bucket/run/model-ckpt-7", VALUES)
    manifest, data = sorted(keys(), key=len)
    assert manifest == "run/model-ckpt-7/manifest.json"
    assert manifests.DATA.fullmatch(data.removeprefix("run/model-ckpt-7/"))
    monkeypatch.setattr(Bucket, "list", None)
    check("s3://bucket/run/model-ckpt-7", VALUES)
    check("s3:/bucket/run/model-ckpt-7", VALUES)  # as pathlib spells it
    with open_checkpoint("s3://bucket/run/model-ckpt-7") as reader:
        assert reader.verify() > 0
        kernel = VALUES["dense/kernel"]
        assert reader.read_slice("dense/kernel", 2, 4).tolist() == kernel[2:4].tolist()
        assert reader.read_slice("text", 1, 9).tolist() == VALUES["text"][1:].tolist()
        target = np.empty(kernel.nbytes, np.uint8)
        reader.read_into("dense/kernel", target)
        assert target.tobytes() == kernel.tobytes() == b"".join(bytes(piece) for piece in reader.chunks("dense/kernel"))
        with pytest.raises(KeyError, match="did you mean 'half'"):
            reader.entry("haft")
    with pytest.raises(CheckpointError, match="this reader is closed"):
        reader.read("half")
    assert CheckpointReader.is_a_checkpoint("s3://bucket/run/model-ckpt-7")
    assert not CheckpointReader.is_a_checkpoint("s3://bucket/run/model-ckpt-8")


def test_the_values_are_cut_into_objects_that_grow_with_their_number(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_SMALLEST_BYTES", 100_000)
    monkeypatch.setattr(writer_module, "_LARGEST_BYTES", 300_000)
    monkeypatch.setattr(writer_module, "_OBJECTS_OF_A_SIZE", 4)
    monkeypatch.setattr(sender_module, "_SENDING_BYTES", 250_000)
    monkeypatch.setattr(manifests, "PIECE_BYTES", 70_001)
    tf_h5_saver.save("s3://bucket/run/c", VALUES)
    with open_checkpoint("s3://bucket/run/c") as reader:
        sizes = reader.manifest.sizes  # type: ignore[attr-defined]
        assert sizes[:10] == (100_000,) * 4 + (200_000,) * 4 + (300_000,) * 2
        kernel = VALUES["dense/kernel"]
        assert reader.read_slice("dense/kernel", 3, 6).tolist() == kernel[3:6].tolist()
    check("s3://bucket/run/c", VALUES)


def test_many_small_tensors_take_few_requests_in_the_order_of_the_stream(proxy: FaultyProxy) -> None:
    values = {f"w{k:03d}": np.full(100, float(k)) for k in range(200)}
    tf_h5_saver.save("s3://bucket/run/c", values)
    before = proxy.num_requests
    check("s3://bucket/run/c", values)
    assert proxy.num_requests - before == 2  # the manifest, and one object
    before = proxy.num_requests
    with open_checkpoint("s3://bucket/run/c") as reader:
        for name in ("w150", "w003", "w199"):
            assert reader.read_slice(name, 5, 7).tolist() == [float(name[1:])] * 2
    assert proxy.num_requests - before == 4


def test_pieces_are_read_ahead_and_in_any_order(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "PIECE_BYTES", 1000)
    monkeypatch.setattr(reader_module, "_USED", -5)
    monkeypatch.setattr(writer_module, "_SMALLEST_BYTES", 3700)
    monkeypatch.setattr(writer_module, "_LARGEST_BYTES", 3700)
    rng = np.random.default_rng(4)
    values = {f"w{k}": rng.normal(size=int(rng.integers(0, 400))) for k in range(30)}
    tf_h5_saver.save("s3://bucket/run/c", values)
    with open_checkpoint("s3://bucket/run/c") as reader:
        for name in (*reversed(values), *rng.permutation(list(values))):
            assert reader.read(name).tolist() == values[name].tolist()
        assert reader.verify() == sum(value.nbytes for value in values.values())


@pytest.mark.parametrize("order", ["names", "told", "saved"])
def test_what_is_read_ahead_is_used(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    for name in ("_ALONE_BYTES", "_SMALLEST_BYTES"):
        monkeypatch.setattr(writer_module, name, 2000)
    monkeypatch.setattr(manifests, "PIECE_BYTES", 1000)
    values = {f"w{k}": np.full(2000, k, np.uint8) for k in range(30)}  # w10 follows w1 by name, w2 in the save
    tf_h5_saver.save("s3://bucket/run/c", values)
    before = proxy.num_requests
    with open_checkpoint("s3://bucket/run/c") as reader:
        names = {"names": reader.names(), "told": [f"w{k}" for k in range(29, -1, -2)], "saved": list(values)}[order]
        if order != "names":
            reader.will_read(names)
        for name in names:
            assert reader.read(name).tolist() == values[name].tolist()
    assert proxy.num_requests - before == 1 + len(names)  # the manifest, and one object for each tensor


def test_object_storage_refuses_shards_and_compression(proxy: FaultyProxy) -> None:
    for words in ({"sharding": 100}, {"compression": "lz4"}):
        with pytest.raises(ValueError, match="compression, shard size and layout are for files"):
            tf_h5_saver.save("s3://bucket/run/c", VALUES, **words)  # type: ignore[arg-type]


def test_nested_states_and_the_commands_take_urls(
    proxy: FaultyProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"a": [1, None, {"b": np.arange(3)}], "c": "text"}
    torch_state.save(state, "s3://bucket/state")
    assert str(torch_state.load("s3://bucket/state")) == str(state)

    with BundleWriter(tmp_path / "model.ckpt-5") as writer:
        for name, value in VALUES.items():
            writer.add(name, value)
    url = "s3://bucket/run/model-ckpt-5"
    assert cli.tensorflow_to_h5([str(tmp_path / "model.ckpt-5"), url, "--verify"]) == 0
    assert cli.tensorflow_to_h5([str(tmp_path / "model.ckpt-5"), url]) == 2
    assert "exists. Use --force" in capsys.readouterr().err
    assert cli.tensorflow_to_h5([str(tmp_path / "model.ckpt-5"), url, "--force", "--compression", "lz4"]) == 2
    assert cli.tensorflow_to_h5([str(tmp_path / "model.ckpt-5"), url, "--force", "--quiet"]) == 0
    assert cli.h5_to_tensorflow([url, "s3://bucket/run/copy"]) == 0
    assert cli.h5_to_tensorflow([url, str(tmp_path / "back"), "--verify"]) == 0
    assert cli.tensorflow_to_h5([url, str(tmp_path / "back.h5")]) == 0
    capsys.readouterr()
    for other in ("s3://bucket/run/copy", str(tmp_path / "back"), str(tmp_path / "back.h5")):
        assert cli.inspect([url, "--diff", other, "--verify"]) == 0
    assert cli.inspect([url]) == 0
    assert "1 data objects, 6 tensors" in capsys.readouterr().out
    assert cli.h5_to_tensorflow([url, url, "--force"]) == 2


def test_the_second_of_two_writers_gets_an_error_and_changes_nothing(proxy: FaultyProxy) -> None:
    first, second = (open_writer("s3://bucket/run/c") for _ in range(2))
    first.add("w", np.zeros(4))
    second.add("w", np.ones(4))
    first.commit()
    with pytest.raises(CheckpointError, match="another process has written this checkpoint meanwhile"):
        second.commit()
    check("s3://bucket/run/c", {"w": np.zeros(4)})
    assert len(keys()) == 2  # nothing is left of the second
    # A third, which starts now, replaces it; the old data objects are removed.
    tf_h5_saver.save("s3://bucket/run/c", {"w": np.full(4, 3.0)})
    check("s3://bucket/run/c", {"w": np.full(4, 3.0)})
    assert len(keys()) == 2


def test_a_writer_that_fails_leaves_nothing_and_the_old_checkpoint(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf_h5_saver.save("s3://bucket/run/c", {"w": np.zeros(4)})

    def failing() -> Iterator[tuple[str, Any]]:
        yield "w", np.ones(3 << 20)
        raise RuntimeError("model has changed")

    monkeypatch.setattr(writer_module, "_SMALLEST_BYTES", 1 << 20)
    with pytest.raises(RuntimeError, match="model has changed"):
        tf_h5_saver.save("s3://bucket/run/c", failing())
    check("s3://bucket/run/c", {"w": np.zeros(4)})
    assert len(keys()) == 2
    for chunks in ([b"1"], [b"12345678" * 3]):
        with pytest.raises(ValueError, match="the chunks hold"), open_writer("s3://bucket/run/d") as writer:
            writer.add_chunks("v", np.float64, (2,), chunks)
    assert keys("s3://bucket/run/d") == []


def test_a_sweep_removes_only_objects_that_no_manifest_names(
    proxy: FaultyProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    tf_h5_saver.save("s3://bucket/run/c", {"w": np.zeros(4)})
    bucket = Bucket(place("s3://bucket"))
    for key in ("run/c/data-1a-00000", "run/gone/data-1a-00003"):
        bucket.put(key, b"left")
    bucket.put("run/c/notes.txt", b"mine")
    before = keys()
    assert sweep(place("s3://bucket/run"), 3600) == []
    assert cli.inspect(["sweep", "s3://bucket/run", "--older-than", "0", "--dry-run"]) == 0
    assert keys() == before
    assert cli.inspect(["sweep", "s3://bucket/run", "--older-than", "0"]) == 0
    assert capsys.readouterr().out.endswith("2 objects, 8 B\n")
    assert set(before) - set(keys()) == {"run/c/data-1a-00000", "run/gone/data-1a-00003"}
    check("s3://bucket/run/c", {"w": np.zeros(4)})
    # A damaged manifest: what its checkpoint needs is unknown, so nothing is removed.
    bucket.put("run/c/manifest.json", b"{}")
    with pytest.raises(CorruptCheckpointError):
        sweep(place("s3://bucket/run"), 0)


def test_a_sweep_refuses_an_age_below_0(proxy: FaultyProxy, capsys: pytest.CaptureFixture[str]) -> None:
    Bucket(place("s3://bucket")).put("run/c/data-1a-00000", b"left")
    for older_than_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="expected 0 or more"):
            sweep(place("s3://bucket/run"), older_than_s)
    assert cli.inspect(["sweep", "s3://bucket/run", "--older-than", "-1"]) == 2
    assert "--older-than -1: expected hours, 0 or more" in capsys.readouterr().err
    assert sweep(place("s3://bucket/run"), float("inf")) == []
    assert keys() == ["run/c/data-1a-00000"]


def test_a_sweep_keeps_what_a_writer_commits_during_the_listing(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    Bucket(place("s3://bucket")).put("run/c/data-1a-00000", b"left")
    list_them = Bucket.list

    def list_and_commit(self: Bucket, prefix: str) -> Iterator[Any]:
        for item in list_them(self, prefix):
            yield item
            if item.key == "run/c/data-1a-00000":
                writer.commit()

    monkeypatch.setattr(writer_module, "_SMALLEST_BYTES", 32)
    writer = open_writer("s3://bucket/run/c")
    writer.add("w", np.zeros(4))
    writer._sender.wait()  # type: ignore[attr-defined]
    monkeypatch.setattr(Bucket, "list", list_and_commit)
    assert [item.key for item in sweep(place("s3://bucket/run"), 0)] == ["run/c/data-1a-00000"]
    check("s3://bucket/run/c", {"w": np.zeros(4)})


def test_a_writer_whose_objects_were_swept_does_not_commit(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    tf_h5_saver.save("s3://bucket/run/c", {"w": np.zeros(4)})
    monkeypatch.setattr(writer_module, "_SMALLEST_BYTES", 32)
    writer = open_writer("s3://bucket/run/c")
    writer.add("w", np.ones(4))
    writer._sender.wait()  # type: ignore[attr-defined]
    assert len(sweep(place("s3://bucket/run"), 0)) == 1
    with pytest.raises(CheckpointError, match="was removed or changed before the checkpoint was complete"):
        writer.commit()
    check("s3://bucket/run/c", {"w": np.zeros(4)})


def test_a_writer_that_has_lost_values_does_not_commit(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_SMALLEST_BYTES", 32)
    monkeypatch.setattr(sender_module, "_SENDING_BYTES", 32)
    put = Bucket.put

    def fail_once(self: Bucket, key: str, content: Any) -> None:
        monkeypatch.setattr(Bucket, "put", put)
        raise CheckpointError("the key has expired")

    monkeypatch.setattr(Bucket, "put", fail_once)
    writer = open_writer("s3://bucket/run/c")
    with pytest.raises(CheckpointError, match="expired"):
        for name in "abc":
            writer.add(name, np.ones(4))
    with pytest.raises(CheckpointError, match="an earlier error has lost values"):
        writer.add("d", np.ones(4))
    with pytest.raises(CheckpointError, match="an earlier error has lost values"):
        writer.commit()
    assert keys("s3://bucket/run/c") == []


@pytest.mark.parametrize("error", [CheckpointError("the key has expired"), KeyboardInterrupt()])
def test_data_stays_if_a_lost_answer_cannot_be_checked(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    put_if, get = Bucket.put_if, Bucket.get

    def forgetful(self: Bucket, key: str, content: bytes, replaced: Any) -> None:
        put_if(self, key, content, replaced)
        monkeypatch.setattr(Bucket, "get", fail)
        raise store_module.ConflictError("another writer was first")

    def fail(self: Bucket, key: str) -> None:
        raise error

    monkeypatch.setattr(Bucket, "put_if", forgetful)
    writer = open_writer("s3://bucket/run/c")
    writer.add("w", np.zeros(4))
    with pytest.raises(type(error)):
        writer.commit()
    writer.abort()
    monkeypatch.setattr(Bucket, "get", get)
    check("s3://bucket/run/c", {"w": np.zeros(4)})


def test_damage_is_found(proxy: FaultyProxy) -> None:
    tf_h5_saver.save("s3://bucket/run/c", VALUES)
    manifest, data = sorted(keys(), key=len)
    bucket = Bucket(place("s3://bucket"))
    size = bucket.size(data)
    assert size is not None
    content = bytearray(bucket.get_range(data, 0, size))
    content[5] ^= 1
    bucket.put(data, content)
    with open_checkpoint("s3://bucket/run/c") as reader:
        reader.check_complete()
        with pytest.raises(CorruptCheckpointError, match=r"damaged: bytes 0 to 2\d+ fail their checksum"):
            reader.read("dense/kernel")
        with pytest.raises(CorruptCheckpointError):
            reader.verify()
    bucket.put(data, content[:-1])
    with (
        open_checkpoint("s3://bucket/run/c") as reader,
        pytest.raises(CorruptCheckpointError, match="bytes instead of"),
    ):
        reader.check_complete()
    bucket.delete([data])
    assert not CheckpointReader.is_a_checkpoint("s3://bucket/run/c")
    bucket.put(manifest, b"no manifest")
    with pytest.raises(CorruptCheckpointError, match="not a manifest"):
        open_checkpoint("s3://bucket/run/c")


@pytest.mark.parametrize("fault", FAULTS)
def test_saves_and_loads_survive_a_network_that_fails(
    proxy: FaultyProxy, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manifests, "PIECE_BYTES", 300_000)
    monkeypatch.setattr(store_module, "_FIRST_PAUSE_MS", 1)
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(1)
    proxy.rate, proxy.faults = 0.25, (fault,)
    for step in range(4):
        values = {"w": rng.normal(size=100_000), "step": np.int64(step)}
        tf_h5_saver.save(f"s3://bucket/run/model-ckpt-{step}", values)
        check(f"s3://bucket/run/model-ckpt-{step}", values)
    assert proxy.given[fault] > 3
    told = sum(bool(re.search(r" in \d+\.\d s\.$|is read again", line)) for line in caplog.messages)
    if fault in ("cut", "corrupt"):  # an answer without a body, or that of an error, is none the worse for it
        assert 0 < told <= proxy.given[fault]
    else:
        assert told == (0 if fault == "delay" else proxy.given[fault])
    proxy.rate = 0.0
    for key in keys():
        assert key.endswith(manifests.NAME) or key.rsplit("/", 1)[0] + "/" + manifests.NAME in keys()
    assert SECRET not in caplog.text


def test_errors_name_what_to_do_and_never_credentials(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CheckpointError, match=r"s3://bucket/none: no checkpoint: it has no manifest\.json"):
        open_checkpoint("s3://bucket/none")
    with pytest.raises(CheckpointError, match="no such object or bucket"):
        tf_h5_saver.save("s3://other/c", {"w": np.zeros(4)})
    with pytest.raises(CheckpointError, match="a bucket; give the checkpoint's own name"):
        open_writer("s3://bucket")
    with pytest.raises(SettingsError, match="expected a URL such as az://account/container/name"):
        open_writer("az://account")
    with pytest.raises(SettingsError, match=r"without empty parts, '\.' or '\.\.'"):
        open_checkpoint("s3://bucket/run/../c")
    with pytest.raises(SettingsError, match="nothing in it is changed in place"):
        tf_h5_saver.update("s3://bucket/c", {})
    monkeypatch.setattr(store_module, "_RETRY_TIMEOUT_S", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match="Nothing answers there: check the endpoint") as caught:
        open_checkpoint("s3://bucket/c")
    assert SECRET not in caplog.text + str(caught.value) and "AKIATEST" not in str(caught.value)


def test_keys_of_a_profile_are_used_without_those_of_the_environment(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {proxy.url}\n")
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = no\n[lab]\naws_access_key_id = AKIATEST\naws_secret_access_key = {SECRET}\n"
    )
    tf_h5_saver.save("s3://bucket/run/c", {"w": np.zeros(4)})
    check("s3://bucket/run/c", {"w": np.zeros(4)})


def test_many_readers_share_a_checkpoint(proxy: FaultyProxy) -> None:
    tf_h5_saver.save("s3://bucket/run/c", VALUES)
    failed: list[BaseException] = []

    def read() -> None:
        try:
            check("s3://bucket/run/c", VALUES)
        except BaseException as exc:  # noqa: BLE001 - reported below
            failed.append(exc)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_commit_whose_answer_is_lost_and_whose_manifest_is_read_damaged_stands(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_if, get, damaged = Bucket.put_if, Bucket.get, []

    def lose_answer(self: Bucket, key: str, content: bytes, replaced: Any) -> None:
        put_if(self, key, content, replaced)
        raise store_module.ConflictError("another writer was first")

    def damage(self: Bucket, key: str) -> Any:
        found = get(self, key)
        if found is None or len(damaged) >= 3:
            return found
        damaged.append(key)
        return found[0][:-3] + b"x" + found[0][-2:], found[1]

    monkeypatch.setattr(Bucket, "put_if", lose_answer)
    monkeypatch.setattr(Bucket, "get", damage)
    tf_h5_saver.save("s3://bucket/run/c", VALUES)
    assert len(damaged) == 3
    check("s3://bucket/run/c", VALUES)


def test_a_commit_after_a_conflict_with_a_damaged_manifest_says_so_and_keeps_the_data(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(self: Bucket, key: str, content: bytes, replaced: Any) -> None:
        monkeypatch.setattr(Bucket, "get", lambda self, key: (b"damaged", None))
        raise store_module.ConflictError("another writer was first")

    monkeypatch.setattr(Bucket, "put_if", conflict)
    monkeypatch.setattr(Bucket, "delete", lambda self, keys: pytest.fail(f"{keys} removed"))
    with pytest.raises(CheckpointError, match="there is a manifest already, and it is damaged"):
        tf_h5_saver.save("s3://bucket/run/c", VALUES)


def test_a_manifest_that_is_too_large_is_refused(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    Bucket(place("s3://bucket")).put("run/c/manifest.json", bytes(2000))
    monkeypatch.setattr(store_module, "_MAX_SMALL_BYTES", 1999)
    with pytest.raises(CorruptCheckpointError, match="2000 bytes; at most 1999 are read"):
        open_checkpoint("s3://bucket/run/c")


@pytest.mark.parametrize(
    "body",
    [
        {"objects": [["../../secret", 8, ["0"]]], "tensors": {}},
        {"objects": [["data-1-00000", -8, []]], "tensors": {}},
        {"objects": [["data-1-00000", 8, ["0"]]], "tensors": {"w": ["float64", [2], 0, 16, "0", 0]}},
        {"objects": [["data-1-00000", 8, ["0"]]], "tensors": {"w": ["float64", [1], -1, 8, "0", 0]}},
        {"objects": [["data-1-00000", 8, ["0"]]], "tensors": {"w": ["float64", [1], 0, 8, "0", 3]}},
        {"objects": [["data-1-00000", 8, []]], "tensors": {}},
        {"objects": [["data-1-00000", 8, ["x"]]], "tensors": {}},
        {"objects": [], "tensors": {}, "piece_bytes": 3},
        {"objects": 3},
        [],
    ],
)
def test_a_hostile_manifest_is_refused(body: Any) -> None:
    body = {"piece_bytes": manifests.PIECE_BYTES, **body} if isinstance(body, dict) else body
    text = json.dumps(body).encode()
    head = {"format": "cerebras_tensorflow checkpoint", "version": 1, "crc32c": f"{manifests.crc32c(text):08x}"}
    with pytest.raises(CorruptCheckpointError, match="not a manifest, or damaged"):
        manifests.decode("s3://bucket/c", json.dumps(head).encode() + b"\n" + text)


@pytest.mark.slow
def test_500_saves_and_loads_survive_all_faults_together(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(store_module, "_FIRST_PAUSE_MS", 1)
    rng = np.random.default_rng(7)
    proxy.rate = 0.1
    for number in range(500):
        values = {"w": rng.normal(size=30_000), "step": np.int64(number)}
        tf_h5_saver.save(f"s3://bucket/run/{number % 20}", values)
        check(f"s3://bucket/run/{number % 20}", values)
    assert min(proxy.given.values()) > 20 and len(proxy.given) == len(FAULTS)


_WRITER = """
import sys
import numpy as np
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.objects import writer

writer._SMALLEST_BYTES = 1 << 20

def values():
    for k in range(8):
        yield f"w{k}", np.zeros(1 << 20, np.uint8)
    print("half", flush=True)
    sys.stdin.read()

tf_h5_saver.save(sys.argv[1], values())
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_checkpoint_and_what_a_sweep_removes(proxy: FaultyProxy) -> None:
    url = "s3://bucket/run/c"
    tf_h5_saver.save(url, {"w": np.zeros(4)})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _WRITER, url], **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        while len(keys()) == 2:  # the first object is on its way
            assert child.poll() is None
        child.kill()
    check(url, {"w": np.zeros(4)})
    left = len(keys()) - 2
    assert len(sweep(place("s3://bucket/run"), 0)) == left > 0
    assert len(keys()) == 2
    check(url, {"w": np.zeros(4)})
