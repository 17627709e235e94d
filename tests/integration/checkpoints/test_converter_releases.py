"""Models of transformers through releases of the PyTorch Model Zoo and back: the same weights, the same logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.converter.api import Options, convert_checkpoint_from_file
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import HF, release

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = {"bos_token_id": 0, "eos_token_id": 0}
GPT = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16, **TOKENS}
SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = SIZES | {"intermediate_size": 24, "max_position_embeddings": 16, **TOKENS}
T5 = {"vocab_size": 32, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8}

# Case -> name here, class, settings, first release that can hold them.
CASES: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "gpt2": ("gpt2", "GPT2LMHead", GPT, (1, 7)),
    "gptj": ("gptj", "GPTJForCausalLM", GPT | {"rotary_dim": 4}, (1, 7)),
    "neox": ("gpt-neox", "GPTNeoXForCausalLM", SIZES | {"intermediate_size": 24, "rotary_pct": 0.5}, (1, 7)),
    "bert": ("bert", "BertForPreTraining", SIZES | {"intermediate_size": 24}, (1, 7)),
    "t5": ("t5", "T5ForConditionalGeneration", T5, (1, 7)),
    "t5 gated": ("t5", "T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-silu"}, (2, 0)),
    "llama": ("llama", "LlamaForCausalLM", LLAMA, (1, 9)),
    "llama groups": ("llama", "LlamaForCausalLM", LLAMA | {"num_key_value_heads": 2}, (2, 0)),
    "llama linear": ("llama", "LlamaForCausalLM", LLAMA | LINEAR, (2, 1)),
    "llama 3": ("llama", "LlamaForCausalLM", LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 500.0}, (2, 3)),
    "mistral": ("mistral", "MistralForCausalLM", LLAMA | {"num_key_value_heads": 1, "sliding_window": 4}, (2, 1)),
    "falcon 7b": ("falcon", "FalconForCausalLM", SIZES | {"multi_query": True, **TOKENS}, (2, 0)),
    "falcon rw": ("falcon", "FalconForCausalLM", SIZES | {"multi_query": False, "bias": True, **TOKENS}, (2, 0)),
    "falcon 40b": (
        "falcon",
        "FalconForCausalLM",
        SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2, **TOKENS},
        (2, 0),
    ),
}
# One release of each kind of names and configs.
RELEASES = ("cs-1.7", "cs-1.9", "cs-2.0", "cs-2.1", "cs-2.3", "cs-2.9")
ROUTES = [
    (case, name)
    for case, (model, _, _, first) in CASES.items()
    for name in RELEASES
    if release(name) >= first and name in MODELS[model].formats
]


def build(case: str) -> Any:
    _, class_name, settings, _ = CASES[case]
    model_class = getattr(transformers, class_name.replace("LMHead", "LMHeadModel"))
    torch.manual_seed(3)
    model = model_class(model_class.config_class(**settings)).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0, 0.3)
    return model


def logits(model: Any) -> list[Any]:
    tokens = torch.arange(1, 13).reshape(1, 12) % 32
    words = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        result = model(input_ids=tokens, **words)
    found = [getattr(result, name, None) for name in ("logits", "prediction_logits", "seq_relationship_logits")]
    return [value for value in found if value is not None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    known: dict[str, Path] = {}

    def folder(case: str) -> Path:
        if case not in known:
            known[case] = tmp_path_factory.mktemp("theirs") / "model"
            build(case).save_pretrained(known[case], max_shard_size="8KB")
        return known[case]

    return folder


@pytest.mark.parametrize(("case", "name"), ROUTES)
def test_a_model_keeps_its_logits_when_converted_to_a_release_and_back(
    case: str, name: str, tmp_path: Path, saved: Callable[[str], Path]
) -> None:
    model, theirs = CASES[case][0], saved(case)
    there = Options(str(tmp_path / "cs"), export_h5_checkpoint=name == "cs-2.9", verify=True)
    config = str(theirs / "config.json")
    checkpoint, params = convert_checkpoint_from_file(model, HF, name, str(theirs), config, there)
    if name in ("cs-1.9", "cs-2.0"):
        checkpoint, params = convert_checkpoint_from_file(
            model, name, "cs-2.4", checkpoint, params, Options(str(tmp_path))
        )
        name = "cs-2.4"
    back = Options(str(tmp_path / "hf"), export_safetensors=name != "cs-2.0", verify=True, hf_shard_bytes=9_000)
    index, _ = convert_checkpoint_from_file(model, name, HF, checkpoint, params, back)
    folder = Path(index).parent
    assert len(list(folder.glob("*-of-*"))) > 1
    loaded, told = type(build(case)).from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    given = build(case)
    weights = loaded.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in given.state_dict().items())
    for expected, value in zip(logits(given), logits(loaded.eval()), strict=True):
        # The kernels round by the alignment of the weights in memory.
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
