"""Conversions between places in object storage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.converter import api
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.staging import staged
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.interface import TensorEntry
from cerebras_tensorflow.saver.model_dir import uploads
from cerebras_tensorflow.saver.objects.store import Bucket
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter
from tests.unit.faulty_proxy import FaultyProxy

H, V = 4, 11
GPTJ = {"vocab_size": V, "n_embd": H, "n_head": 2, "n_layer": 1, "n_positions": 6, "rotary": True, "rotary_dim": 2}
GPTJ |= {"architectures": ["GPTJForCausalLM"], "n_inner": None}
SHAPES = {"transformer.wte.weight": [V, H], "lm_head.weight": [V, H], "lm_head.bias": [V]}
SHAPES |= {f"transformer.h.0.attn.{part}_proj.weight": [H, H] for part in ("q", "k", "v", "out")}
SHAPES |= {"transformer.h.0.mlp.fc_in.weight": [16, H], "transformer.h.0.mlp.fc_in.bias": [16]}
SHAPES |= {"transformer.h.0.mlp.fc_out.weight": [H, 16], "transformer.h.0.mlp.fc_out.bias": [H]}
SHAPES |= {f"transformer.{norm}.{kind}": [H] for norm in ("h.0.ln_1", "ln_f") for kind in ("weight", "bias")}


def test_a_model_goes_from_hugging_face_to_the_reference_model_and_back_within_a_bucket(
    proxy: FaultyProxy, tmp_path: Path
) -> None:
    location = object_location("s3://bucket/models")
    assert location is not None
    bucket = Bucket(location)
    rng = np.random.default_rng(1)
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    entries = {name: TensorEntry(value.dtype, value.shape, value.nbytes) for name, value in values.items()}
    with SafetensorsWriter(tmp_path / "model.safetensors", entries) as writer:
        for name, value in values.items():
            writer.add(name, value)
    bucket.put_file("models/hf/model.safetensors", str(tmp_path / "model.safetensors"))
    bucket.put("models/hf/config.json", json.dumps(GPTJ).encode())

    cs = api.convert_checkpoint_from_file(
        "gptj", "hf", "cs-1.8", "s3://bucket/models/hf", "s3://bucket/models/hf/config.json",
        api.Options("s3://bucket/models/cs", export_h5_checkpoint=True, verify=True),
    )  # fmt: skip
    assert cs == ("s3://bucket/models/cs/hf_to_cs-1.8.mdl", "s3://bucket/models/cs/config_to_cs-1.8.yaml")
    # Without an output_dir, the results are beside the checkpoint.
    tf, config = api.convert_checkpoint_from_file("gptj", "cs-1.8", "tf", *cs)
    assert (tf, config) == (
        "s3://bucket/models/cs/hf_to_cs-1.8_to_tf.ckpt", "s3://bucket/models/cs/config_to_cs-1.8_to_tf.yaml",
    )  # fmt: skip
    back, config = api.convert_checkpoint_from_file(
        "gptj", "tf", "hf", tf, config, api.Options(str(tmp_path / "back"), export_safetensors=True, hf_shard_bytes=500)
    )
    with open_any(back) as reader:
        for name, value in values.items():
            np.testing.assert_array_equal(reader.read(name), value)
    # A sharded checkpoint in a bucket: its index names the other files.
    for path in Path(back).parent.iterdir():
        bucket.put_file(f"models/shards/{path.name}", str(path))
    url = f"s3://bucket/models/shards/{Path(back).name}"
    converted, _ = api.convert_checkpoint_from_file(
        "gptj", "hf", "cs-2.0", url, "s3://bucket/models/shards/config.json", api.Options(str(tmp_path / "cs"))
    )
    assert Path(converted).is_file()


def test_a_missing_input_in_a_bucket_is_named(proxy: FaultyProxy) -> None:
    with pytest.raises(CheckpointError, match=r"s3://bucket/none\.bin: there is no such object"):
        api.convert_checkpoint_from_file("gptj", "hf", "cs-1.8", "s3://bucket/none.bin", "config.json")


def bucket_of(url: str) -> Bucket:
    location = object_location(url)
    assert location is not None
    return Bucket(location)


def test_all_files_of_a_checkpoint_are_fetched_and_published(tmp_path: Path, proxy: FaultyProxy) -> None:
    with open_writer(str(tmp_path / "model.ckpt-5")) as writer:
        writer.add("w", np.arange(3))
    bucket = bucket_of("s3://bucket/in")
    for path in tmp_path.iterdir():
        bucket.put_file(f"in/{path.name}", str(path))
    with staged("s3://bucket/in/model.ckpt-5.index", "", "s3://bucket/out") as files:
        assert files.output_dir is not None
        with open_checkpoint(files.checkpoint.removesuffix(".index")) as reader:
            assert reader.read("w").tolist() == [0, 1, 2]
        result = Path(files.output_dir) / "gpt.data-v2_to_hf.bin"
        result.write_bytes(b"weights")
        assert files.publish(str(result)) == ("s3://bucket/out/gpt.data-v2_to_hf.bin",)
    assert [item.key for item in bucket.list("out")] == ["out/gpt.data-v2_to_hf.bin"]


def test_a_process_copies_the_files_that_a_killed_one_has_left(
    tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = f"s3://bucket/{tmp_path.name}"
    bucket = bucket_of(url)
    Path(uploads.begin(url), "events.out.tfevents.1").write_text("1")
    uploads.upload(url)
    Path(uploads.begin(url), "events.out.tfevents.2").write_text("2")  # the process is killed here
    bucket.delete([f"{tmp_path.name}/events.out.tfevents.1"])  # somebody emptied the bucket
    uploads.begin(url)
    uploads.upload(url)
    assert [item.key for item in bucket.list(tmp_path.name)] == [f"{tmp_path.name}/events.out.tfevents.2"]
