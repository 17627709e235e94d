"""Converted checkpoints of transformers give the same logits in our models, and convert back unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from reference_implementations.bert.fine_tuning.classifier.model import classifier_logits
from reference_implementations.bert.fine_tuning.classifier.settings import ClassifierSettings
from reference_implementations.bert.fine_tuning.qa.model import span_logits
from reference_implementations.bert.fine_tuning.token_classifier.model import token_logits
from reference_implementations.bert.fine_tuning.token_classifier.settings import TokenClassifierSettings
from reference_implementations.bert.model import pretraining_logits
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.settings import check_section
from reference_implementations.gpt2.model import gpt2_logits
from reference_implementations.gpt2.settings import Gpt2Settings
from reference_implementations.gptj.model import gptj_logits
from reference_implementations.gptj.settings import GptjSettings
from reference_implementations.llama.model import llama_logits
from reference_implementations.llama.settings import LlamaSettings
from reference_implementations.t5.model import t5_logits
from reference_implementations.t5.settings import T5Settings

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS_BS = np.random.default_rng(7).integers(0, 97, [2, 12], dtype=np.int32)
TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2(tied: bool) -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=24, tie_word_embeddings=tied, **TOKENS
        )
    )


def gptj(tied: bool) -> Any:
    config = transformers.GPTJConfig(
        vocab_size=97,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=24,
        rotary_dim=4,
        tie_word_embeddings=tied,
        **TOKENS,
    )
    return transformers.GPTJForCausalLM(config)


def bert(tied: bool) -> Any:
    config = transformers.BertConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        pad_token_id=None,
    )
    return transformers.BertForPreTraining(config)


def llama(tied: bool) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        tie_word_embeddings=tied,
        **TOKENS,
    )
    return transformers.LlamaForCausalLM(config)


def t5(tied: bool) -> Any:
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4, pad_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def neox(tied: bool) -> Any:
    config = transformers.GPTNeoXConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        rotary_pct=0.25,
        tie_word_embeddings=tied,
        **TOKENS,
    )
    return transformers.GPTNeoXForCausalLM(config)


def codegen(tied: bool) -> Any:
    config = transformers.CodeGenConfig(
        vocab_size=97,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=24,
        n_ctx=24,
        rotary_dim=4,
        tie_word_embeddings=tied,
        **TOKENS,
    )
    return transformers.CodeGenForCausalLM(config)


def bert_config(**changes: Any) -> Any:
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 24, "pad_token_id": None}
    return transformers.BertConfig(**sizes, **changes)


def sequence_classifier(_tied: bool) -> Any:
    config = bert_config(num_labels=3, problem_type="single_label_classification", classifier_dropout=0.2)
    return transformers.BertForSequenceClassification(config)


def token_classifier(_tied: bool) -> Any:
    return transformers.BertForTokenClassification(bert_config(num_labels=5))


def question_answering(_tied: bool) -> Any:
    return transformers.BertForQuestionAnswering(bert_config())


def our_t5_logits(ids: tf.Tensor, settings: T5Settings, is_training: bool) -> tf.Tensor:
    return t5_logits(ids, ids, settings, is_training)


def our_bert_logits(ids: tf.Tensor, settings: BertSettings, is_training: bool) -> tf.Tensor:
    positions = tf.tile(tf.range(12)[None], [2, 1])
    features = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
    return pretraining_logits(features | {"masked_lm_positions": positions}, settings, is_training)[0]


def our_head_logits(head: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    def logits(ids: tf.Tensor, settings: Any, is_training: bool) -> tf.Tensor:
        features = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
        return head(features, settings, is_training)

    return logits


OURS: dict[str, tuple[Callable[[bool], Any], Callable[..., tf.Tensor], type]] = {
    "gpt2": (gpt2, gpt2_logits, Gpt2Settings),
    "gptj": (gptj, gptj_logits, GptjSettings),
    "bert": (bert, our_bert_logits, BertSettings),
    "t5": (t5, our_t5_logits, T5Settings),
    "llama": (llama, llama_logits, LlamaSettings),
    "bert-sequence-classifier": (sequence_classifier, our_head_logits(classifier_logits), ClassifierSettings),
    "bert-token-classifier": (token_classifier, our_head_logits(token_logits), TokenClassifierSettings),
    "bert-q&a": (question_answering, our_head_logits(span_logits), BertSettings),
}


# With the models that our reference implementations do not have.
ROUND_TRIPS = {name: build for name, (build, _, _) in OURS.items()} | {
    "gpt-neox": neox,
    "codegen": codegen,
}


def their_logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        ids = torch.from_numpy(IDS_BS.astype(np.int64))
        extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        result = model.eval()(ids, **extra)
    if hasattr(result, "start_logits"):
        return np.stack([result.start_logits.numpy(), result.end_logits.numpy()], axis=-1)
    return (result.prediction_logits if hasattr(result, "prediction_logits") else result.logits).numpy()


def our_logits(name: str, checkpoint: Path, config: Path) -> np.ndarray:
    """Logits of our model with exactly the variables of a checkpoint."""
    settings = check_section(yaml.safe_load(config.read_text())["model"], OURS[name][2], "model", str(config))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, open_checkpoint(checkpoint) as reader:
        logits = OURS[name][1](tf.constant(IDS_BS), settings, is_training=False)
        variables = tf.compat.v1.trainable_variables()
        assert {variable.op.name for variable in variables} == set(reader.names())
        for variable in variables:
            variable.load(reader.read(variable.op.name), session)
        return session.run(logits)


def convert(name: str, source: str, target: str, checkpoint: Path, config: Path, folder: Path, *flags: str) -> None:
    words = ["convert", "--model", name, "--src-fmt", source, "--tgt-fmt", target, "--config", str(config)]
    assert main([*words, "--output-dir", str(folder), "--verify", *flags, str(checkpoint)]) == 0


def perturbed(model: Any) -> Any:
    """Make all weights different, including norms and biases, which start equal."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("gpt2", True),
        ("gpt2", False),
        ("gptj", False),
        ("gptj", True),
        ("bert", True),
        ("bert-sequence-classifier", True),
        ("bert-token-classifier", True),
        ("bert-q&a", True),
        ("t5", True),
        ("llama", False),
        ("llama", True),
    ],
)
def test_a_converted_checkpoint_gives_the_same_logits_and_converts_back_unchanged(
    name: str, tied: bool, tmp_path: Path
) -> None:
    model = perturbed(OURS[name][0](tied))
    theirs = their_logits(model)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")  # several shards
    (index,) = (tmp_path / "hf").glob("*.index.json")
    config = tmp_path / "hf" / "config.json"

    convert(name, "hf", "tf", index, config, tmp_path / "tf")
    ours = tmp_path / "tf" / "model_to_tf.ckpt"
    np.testing.assert_allclose(our_logits(name, ours, tmp_path / "tf" / "config_to_tf.yaml"), theirs, rtol=0, atol=1e-4)

    convert(name, "tf", "hf", ours, tmp_path / "tf" / "config_to_tf.yaml", tmp_path / "back")
    back = torch.load(tmp_path / "back" / "model_to_tf.ckpt_to_hf.bin", weights_only=True)
    original = model.state_dict()
    # transformers makes the masks itself; they are not weights.
    buffers = {key for key in original if key.endswith((".attn.bias", ".masked_bias"))}
    assert set(back) == set(original) - buffers
    for key, value in back.items():
        assert torch.equal(value, original[key]), key
    fresh = type(model)(type(model.config).from_pretrained(tmp_path / "back" / "config_to_tf_to_hf.json"))
    fresh.load_state_dict(back, strict=not buffers)
    np.testing.assert_allclose(their_logits(fresh), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("flags", [[], ["--export-h5-checkpoint"]])
@pytest.mark.parametrize(
    ("name", "cs"),
    [
        ("gpt2", "cs-1.8"),
        ("gptj", "cs-1.7"),
        ("gpt-neox", "cs-1.8"),
        ("codegen", "cs-1.8"),
        ("bert", "cs-1.8"),
        ("bert-sequence-classifier", "cs-1.7"),
        ("bert-token-classifier", "cs-1.8"),
        ("bert-q&a", "cs-1.8"),
        ("t5", "cs-1.8"),
        ("llama", "cs-1.9"),
    ],
)
def test_a_round_trip_over_the_model_zoo_changes_no_bit(name: str, cs: str, flags: list[str], tmp_path: Path) -> None:
    model = perturbed(ROUND_TRIPS[name](True))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    convert(name, "hf", cs, tmp_path / "pytorch_model.bin", tmp_path / "config.json", tmp_path, *flags)
    middle = tmp_path / f"pytorch_model_to_{cs}.mdl"
    convert(name, cs, "hf", middle, tmp_path / f"config_to_{cs}.yaml", tmp_path / "back", "--export-safetensors")
    with open_any(tmp_path / "back" / f"pytorch_model_to_{cs}_to_hf.safetensors") as back:
        # transformers 5 renames the output layer of GPT-NeoX when it loads and saves a file.
        names = {"lm_head.weight": "embed_out.weight"} if name == "gpt-neox" else {}
        original = {names.get(key, key): value.numpy() for key, value in model.state_dict().items()}
        # transformers makes masks and rotary tables itself; they are not weights.
        buffers = {key for key in original if key.endswith(("inv_freq", "causal_mask", ".attn.bias", "masked_bias"))}
        assert set(back.names()) == set(original) - buffers
        for key in back.names():
            np.testing.assert_array_equal(back.read(key), original[key], err_msg=key)
    config = json.loads((tmp_path / "back" / f"config_to_{cs}_to_hf.json").read_text())
    fresh = type(model)(type(model.config)(**config)).eval()
    with open_any(tmp_path / "back" / f"pytorch_model_to_{cs}_to_hf.safetensors") as back:
        here = {file: own for own, file in names.items()}
        state = {here.get(key, key): torch.from_numpy(back.read(key)) for key in back.names()}
    fresh.load_state_dict(state, strict=not buffers)
    ids = torch.from_numpy(IDS_BS.astype(np.int64))
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        ours, theirs = fresh(ids, **extra), model.eval()(ids, **extra)
    assert torch.equal(ours[0], theirs[0])


def test_a_gpt2_of_ours_generates_text_in_transformers(tmp_path: Path) -> None:
    model = perturbed(gpt2(True))
    model.save_pretrained(tmp_path / "hf")
    convert("gpt2", "hf", "tf", tmp_path / "hf" / "model.safetensors", tmp_path / "hf" / "config.json", tmp_path / "tf")
    folder = tmp_path / "back"
    config = tmp_path / "tf" / "config_to_tf.yaml"
    convert("gpt2", "tf", "hf", tmp_path / "tf" / "model_to_tf.ckpt", config, folder, "--export-safetensors")
    (folder / "model_to_tf.ckpt_to_hf.safetensors").rename(folder / "model.safetensors")
    (folder / "config_to_tf_to_hf.json").rename(folder / "config.json")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(folder)
    prompt = torch.from_numpy(IDS_BS[:1].astype(np.int64))
    generated = loaded.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    expected = model.eval().generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, expected)
