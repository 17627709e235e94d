"""The name tables: for each model every tensor's place in every format, and every setting's name.

Sources: the public Model Zoo's checkpoints (cs), transformers' classes (hf), ../../reference_implementations (tf).
"""

from __future__ import annotations

from collections.abc import Iterable

from cerebras_tensorflow.converter.rules import (
    CS,
    HALVES,
    HALVES_TRANSPOSED,
    HF,
    PLAIN,
    TF,
    THIRDS,
    TRANSPOSED,
    Config,
    ConfigKey,
    Constant,
    Layout,
    Model,
    Place,
    Tensor,
)

CS_FORMATS = ("cs-1.7", "cs-1.8")


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _doubled(scope: str) -> str:
    return f"{scope}/{scope.rpartition('/')[2]}"


def _plain(key: str, hf: str | None, tf: str | None, same_as: str | None = None) -> Tensor:
    places = {CS: Place(key)}
    if hf is not None:
        places[HF] = Place(hf)
    if tf is not None:
        places[TF] = Place(tf)
    return Tensor(key, places, same_as)


def _norm(key: str, hf: str, tf: str, has_bias: bool = True) -> list[Tensor]:
    found = [_plain(f"{key}.weight", f"{hf}.weight", f"{_doubled(tf)}/gamma")]
    return [*found, _plain(f"{key}.bias", f"{hf}.bias", f"{_doubled(tf)}/beta")] if has_bias else found


def _linear(
    key: str, hf: str, tf: str, has_bias: bool = True, hf_layout: Layout = PLAIN, part: int = 0
) -> list[Tensor]:
    def tensor(kind: str, tf_kind: str, tf_layout: Layout) -> Tensor:
        places = {
            CS: Place(f"{key}.{kind}"),
            # A bias has no axes to swap; in packed layouts it is split as its weight is.
            HF: Place(f"{hf}.{kind}", hf_layout if kind == "weight" or hf_layout.parts > 1 else PLAIN, part),
            TF: Place(f"{_doubled(tf)}/{tf_kind}", tf_layout),
        }
        return Tensor(f"{key}.{kind}", places)

    found = [tensor("weight", "kernel", TRANSPOSED)]
    return [*found, tensor("bias", "bias", PLAIN)] if has_bias else found


def _gpt2(config: Config) -> list[Tensor]:
    table = "embedding_layer.word_embeddings.weight"
    tied = config["tie_word_embeddings"]
    found = [
        _plain(table, "wte.weight", "input_embedding/embedding_weights"),
        _plain(
            "embedding_layer.position_embeddings.weight", "wpe.weight", "position_embedding/position_embedding_weights"
        ),
    ]
    for i in range(config["n_layer"]):
        block = f"transformer_decoder.layers.{i}"
        attention = f"decoder/{_numbered('self_attention', i)}"
        ffn = f"decoder/{_numbered('ffn', i)}"
        found += _norm(f"{block}.norm1", f"h.{i}.ln_1", f"decoder/{_numbered('layer_normalization_layer', 3 * i)}")
        for part, letter in enumerate("qkv"):
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            found += _linear(key, f"h.{i}.attn.c_attn", f"{attention}/{letter}_projection", True, THIRDS, part)
        key = f"{block}.self_attn.proj_output_dense_layer"
        found += _linear(key, f"h.{i}.attn.c_proj", f"{attention}/output_transform", True, TRANSPOSED)
        number = 3 * i + 2
        found += _norm(f"{block}.norm3", f"h.{i}.ln_2", f"decoder/{_numbered('layer_normalization_layer', number)}")
        for part, name in enumerate(("c_fc", "c_proj")):
            scope = f"{ffn}/{_numbered('dense_layer', 2 * i + part)}"
            key = f"{block}.ffn.ffn.{part}.linear_layer"
            found += _linear(key, f"h.{i}.mlp.{name}", scope, True, TRANSPOSED)
    found += _norm("transformer_decoder.norm", "ln_f", "post_decoder_layer_norm")
    head = Tensor(
        "lm_head.weight",
        {CS: Place("lm_head.weight"), HF: Place("lm_head.weight")}
        | ({} if tied else {TF: Place("lm_output_layer/lm_output_layer/kernel", TRANSPOSED)}),
        table if tied else None,
    )
    return [*found, head]


def _gptj(config: Config) -> list[Tensor]:
    table = "embedding_layer.word_embeddings.weight"
    tied = config["tie_word_embeddings"]
    found = [_plain(table, "wte.weight", "input_embedding/embedding_weights")]
    for i in range(config["n_layer"]):
        block, scope = f"transformer_decoder.layers.{i}", f"gptj_decoder/{i}"
        found += _norm(f"{block}.norm1", f"h.{i}.ln_1", f"{scope}/ln_1")
        for letter in "qkv":
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            found += _linear(key, f"h.{i}.attn.{letter}_proj", f"{scope}/attn/{letter}_proj", has_bias=False)
        key = f"{block}.self_attn.proj_output_dense_layer"
        found += _linear(key, f"h.{i}.attn.out_proj", f"{scope}/attn/out_proj", has_bias=False)
        for part, name in enumerate(("fc_in", "fc_out")):
            dense = f"{scope}/mlp/{_numbered('dense_layer', 2 * i + part)}"
            found += _linear(f"{block}.ffn.ffn.{part}.linear_layer", f"h.{i}.mlp.{name}", dense)
    found += _norm("transformer_decoder.norm", "ln_f", "post_decoder_layer_norm")
    weight, bias = _linear("lm_head", "lm_head", "lm_head")
    if tied:
        weight = Tensor(weight.key, {CS: weight.places[CS], HF: weight.places[HF]}, same_as=table)
        bias = Tensor(bias.key, bias.places | {TF: Place("bias")})
    return [*found, weight, bias]


def _bert(config: Config) -> list[Tensor]:
    table = "bert_encoder.embedding_layer.word_embeddings.weight"
    embedding, hf = "bert_encoder.embedding_layer", "bert.embeddings"
    found = [
        _plain(table, f"{hf}.word_embeddings.weight", "input_embedding/embedding_weights"),
        _plain(
            f"{embedding}.position_embeddings.weight",
            f"{hf}.position_embeddings.weight",
            "position_embedding/position_embedding_weights",
        ),
        _plain(
            f"{embedding}.segment_embeddings.weight",
            f"{hf}.token_type_embeddings.weight",
            "segment_embedding/segment_embedding_weights",
        ),
        *_norm("bert_encoder.embed_ln_f", f"{hf}.LayerNorm", "pre_encoder_layer_norm"),
    ]
    for i in range(config["num_hidden_layers"]):
        block, theirs = f"bert_encoder.transformer_encoder.layers.{i}", f"bert.encoder.layer.{i}"
        attention, ffn = f"encoder/{_numbered('self_attention', i)}", f"encoder/{_numbered('ffn', i)}"
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            found += _linear(key, f"{theirs}.attention.self.{name}", f"{attention}/{letter}_projection")
        key = f"{block}.self_attn.proj_output_dense_layer"
        found += _linear(key, f"{theirs}.attention.output.dense", f"{attention}/output_transform")
        for number, name in ((1, "attention.output"), (2, "output")):
            scope = f"encoder/{_numbered('layer_normalization_layer', 2 * i + number - 1)}"
            found += _norm(f"{block}.norm{number}", f"{theirs}.{name}.LayerNorm", scope)
        for part, name in enumerate(("intermediate", "output")):
            scope = f"{ffn}/{_numbered('dense_layer', 2 * i + part)}"
            found += _linear(f"{block}.ffn.ffn.{part}.linear_layer", f"{theirs}.{name}.dense", scope)
    head = "bert_mlm_head.classifier.ffn.0.linear_layer"
    found += _linear("bert_encoder.pooler.pooler.ffn.0.linear_layer", "bert.pooler.dense", "cls_layer/cls_dense")
    key = "bert_cls_head.classifier.ffn.0.linear_layer"
    found += _linear(key, "cls.seq_relationship", "cls_layer/cls_output_dense")
    key = "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer"
    found += _linear(key, "cls.predictions.transform.dense", "mlm_layer/mlm_ffn")
    found += _norm("bert_mlm_head.mlm_transform.ln", "cls.predictions.transform.LayerNorm", "mlm_layer/mlm_layer_norm")
    found.append(
        Tensor(f"{head}.weight", {CS: Place(f"{head}.weight"), HF: Place("cls.predictions.decoder.weight")}, table)
    )
    found.append(_plain(f"{head}.bias", "cls.predictions.bias", "mlm_layer/mlm_bias"))
    return found


def _llama(config: Config) -> list[Tensor]:
    table = "embedding_layer.word_embeddings.weight"
    found = [_plain(table, "embed_tokens.weight", "input_embedding/embedding_weights")]
    for i in range(config["num_hidden_layers"]):
        block, scope = f"transformer_decoder.layers.{i}", f"decoder/{i}"
        found += _norm(f"{block}.norm1", f"layers.{i}.input_layernorm", f"{scope}/attention_norm", has_bias=False)
        for letter in "qk":
            key = f"{block}.self_attn.proj_{letter}_dense_layer.weight"
            places = {
                CS: Place(key),
                HF: Place(f"layers.{i}.self_attn.{letter}_proj.weight", HALVES),
                TF: Place(f"{scope}/attention/{letter}_proj/{letter}_proj/kernel", HALVES_TRANSPOSED),
            }
            found.append(Tensor(key, places))
        for name, theirs, ours in (("v", "v_proj", "v_proj"), ("output", "o_proj", "out_proj")):
            key = f"{block}.self_attn.proj_{name}_dense_layer"
            found += _linear(key, f"layers.{i}.self_attn.{theirs}", f"{scope}/attention/{ours}", has_bias=False)
        found += _norm(f"{block}.norm3", f"layers.{i}.post_attention_layernorm", f"{scope}/mlp_norm", has_bias=False)
        for name, key in (
            ("up_proj", "ffn.ffn.0.linear_layer"),
            ("gate_proj", "ffn.ffn.0.linear_layer_for_glu"),
            ("down_proj", "ffn.ffn.1.linear_layer"),
        ):
            found += _linear(f"{block}.{key}", f"layers.{i}.mlp.{name}", f"{scope}/mlp/{name}", has_bias=False)
    found += _norm("transformer_decoder.norm", "norm", "post_decoder_norm", has_bias=False)
    (head,) = _linear("lm_head", "lm_head", "lm_head", has_bias=False)
    if config["tie_word_embeddings"]:
        head = Tensor(head.key, {CS: head.places[CS], HF: head.places[HF]}, same_as=table)
    return [*found, head]


def _t5(config: Config) -> list[Tensor]:
    table = "encoder_embeddings.word_embeddings.weight"
    found = [_plain(table, "shared.weight", "encoder_embedding/embedding_weights")]
    norm = dense = 0
    for stack, num_blocks in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        key = f"relative_position_{stack}.relative_attention_bias.weight"
        found.append(_plain(key, first, f"{stack}/relative_attention_bias"))
        kinds = [("self_attn", "SelfAttention", "self_attention")]
        if stack == "decoder":
            kinds.append(("multihead_attn", "EncDecAttention", "encoder_decoder_attention"))
        for i in range(num_blocks):
            block, theirs = f"{stack}.layers.{i}", f"{stack}.block.{i}.layer"
            for number, (key, name, scope) in enumerate(kinds):
                ours = f"{stack}/{_numbered(scope, i)}"
                for part, letter in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                    last = "output_transform" if part == "output" else f"{part}_projection"
                    linear = f"{block}.{key}.proj_{part}_dense_layer"
                    found += _linear(linear, f"{theirs}.{number}.{name}.{letter}", f"{ours}/{last}", has_bias=False)
            for number, name in enumerate(("wi", "wo")):
                scope = f"{stack}/{_numbered('ffn', i)}/{_numbered('dense_layer', dense)}"
                linear, hf = f"{block}.ffn.ffn.{number}.linear_layer", f"{theirs}.{len(kinds)}.DenseReluDense.{name}"
                found += _linear(linear, hf, scope, has_bias=False)
                dense += 1
            for number in range(len(kinds) + 1):
                scope = f"{stack}/{_numbered('layer_normalization_layer', norm)}"
                found += _norm(f"{block}.norm{number + 1}", f"{theirs}.{number}.layer_norm", scope, has_bias=False)
                norm += 1
        scope = f"{stack}/{_numbered('layer_normalization_layer', norm)}"
        found += _norm(f"{stack}.norm", f"{stack}.final_layer_norm", scope, has_bias=False)
        norm += 1
    (head,) = _linear("lm_head", "lm_head", "lm_output_layer", has_bias=False)
    if config["tie_word_embeddings"]:
        head = Tensor(head.key, {CS: head.places[CS], HF: head.places[HF]}, same_as=table)
    return [*found, head]


_GPT_KEYS = (
    ConfigKey("vocab_size", "vocab_size", "vocab_size"),
    ConfigKey("n_embd", "hidden_size", "hidden_size"),
    ConfigKey("n_head", "num_heads", "num_heads"),
    ConfigKey("n_layer", "num_hidden_layers", "num_hidden_layers"),
    ConfigKey("n_inner", "filter_size", "filter_size"),
    ConfigKey("n_positions", "max_position_embeddings", "max_position_embeddings"),
    ConfigKey("activation_function", "nonlinearity", "nonlinearity", "gelu_new"),
    ConfigKey("layer_norm_epsilon", "layer_norm_epsilon", "layer_norm_epsilon", 1e-5),
    ConfigKey("initializer_range", "initializer_range", "initializer_range", 0.02),
)
_FIXED = (
    Constant(CS, "use_position_embedding", True),
    Constant(CS, "embedding_layer_norm", False),
    Constant(CS, "fixed_sparse_attention", None),
    Constant(CS, "norm_first", True),
    Constant(CS, "use_ff_layer1_dropout", False),
)
# What carries no weight: optimizer state and counters in checkpoints of a run, buffers of old transformers.
_RUN_STATE = r"global_step|optimizer\..*|lr_scheduler\..*|amp\..*|scaler\..*|grad_scaler.*|state_version|__.*"
_SLOTS = (
    r"global_step|beta[12]_power|current_loss_scale|good_steps|steps_since_rescale|overflows_since_rescale"
    r"|.*/(Adam|AdamW|Momentum)(_1)?"
)
_GPT_IGNORED = {HF: r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)", CS: _RUN_STATE, TF: _SLOTS}
_GPT_COPIES = {f"ln_f.{kind}": f"transformer_decoder.norm.{kind}" for kind in ("weight", "bias")}


def _with_headless(model: Model) -> Iterable[Model]:
    yield model
    yield Model(
        name=f"{model.name}-headless",
        tensors=lambda config: [tensor for tensor in model.tensors(config) if not tensor.key.startswith("lm_head")],
        config_keys=model.config_keys,
        constants=model.constants,
        formats=(HF, *(name for name in model.formats if name.startswith(CS))),
        hf_prefix="",
        hf_class=model.hf_class.replace("LMHeadModel", "Model").replace("ForCausalLM", "Model"),
        cs_class=model.cs_class,
        ignored=model.ignored,
        cs_copies=model.cs_copies,
        has_head=False,
    )


_GPT2 = Model(
    name="gpt2",
    tensors=_gpt2,
    config_keys=(
        *_GPT_KEYS,
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", True),
        ConfigKey("resid_pdrop", "dropout_rate", "dropout_rate", 0.1),
        ConfigKey("attn_pdrop", "attention_dropout_rate", "attention_dropout_rate", 0.1),
        ConfigKey("embd_pdrop", "embedding_dropout_rate", None, 0.1),
    ),
    constants=(
        *_FIXED,
        Constant(HF, "scale_attn_by_inverse_layer_idx", False),
        Constant(HF, "reorder_and_upcast_attn", False),
        Constant(CS, "position_embedding_type", "learned", is_written=True),
        Constant(CS, "attention_type", "scaled_dot_product", is_written=True),
        Constant(CS, "use_projection_bias_in_attention", True),
        Constant(CS, "use_ffn_bias_in_attention", True),
        Constant(CS, "use_ffn_bias", True),
        Constant(CS, "use_bias_in_output", False),
    ),
    formats=(HF, *CS_FORMATS, TF),
    hf_prefix="transformer.",
    hf_class="GPT2LMHeadModel",
    cs_class="GPT2LMHeadModel",
    ignored=_GPT_IGNORED,
    cs_copies=_GPT_COPIES,
)

_GPTJ = Model(
    name="gptj",
    tensors=_gptj,
    config_keys=(
        *_GPT_KEYS,
        ConfigKey("rotary_dim", "rotary_dim", "rotary_dim", 64),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", False),
        ConfigKey("resid_pdrop", "residual_dropout_rate", "residual_dropout_rate", 0.0),
        ConfigKey("attn_pdrop", "attention_dropout_rate", "attention_dropout_rate", 0.0),
        ConfigKey("embd_pdrop", "embedding_dropout_rate", "embedding_dropout_rate", 0.0),
    ),
    constants=(
        *_FIXED,
        Constant(HF, "scale_attn_weights", True),
        Constant(CS, "position_embedding_type", "rotary", is_written=True),
        Constant(CS, "attention_type", "scaled_dot_product", is_written=True),
        Constant(CS, "use_projection_bias_in_attention", False, is_written=True),
        Constant(CS, "use_ffn_bias_in_attention", False, is_written=True),
        Constant(CS, "use_ffn_bias", True, is_written=True),
        Constant(CS, "use_bias_in_output", True, is_written=True),
    ),
    formats=(HF, *CS_FORMATS, TF),
    hf_prefix="transformer.",
    hf_class="GPTJForCausalLM",
    cs_class="GPTJModel",
    ignored=_GPT_IGNORED,
    cs_copies=_GPT_COPIES,
)

_BERT = Model(
    name="bert",
    tensors=_bert,
    config_keys=(
        ConfigKey("vocab_size", "vocab_size", "vocab_size", 30522),
        ConfigKey("hidden_size", "hidden_size", "hidden_size", 768),
        ConfigKey("num_hidden_layers", "num_hidden_layers", "num_hidden_layers", 12),
        ConfigKey("num_attention_heads", "num_heads", "num_heads", 12),
        ConfigKey("intermediate_size", "filter_size", "filter_size", 3072),
        ConfigKey("max_position_embeddings", "max_position_embeddings", "max_position_embeddings", 512),
        ConfigKey("hidden_act", "encoder_nonlinearity", "nonlinearity", "gelu"),
        ConfigKey("hidden_dropout_prob", "dropout_rate", "dropout_rate", 0.1),
        ConfigKey("attention_probs_dropout_prob", "attention_dropout_rate", "attention_dropout_rate", 0.1),
        ConfigKey("layer_norm_eps", "layer_norm_epsilon", "layer_norm_epsilon", 1e-12),
        ConfigKey("initializer_range", "initializer_range", "initializer_range", 0.02),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", None, True),
    ),
    constants=(
        Constant(HF, "type_vocab_size", 2),
        Constant(HF, "is_decoder", False),
        Constant(HF, "add_cross_attention", False),
        Constant(HF, "position_embedding_type", "absolute"),
        Constant(CS, "position_embedding_type", "learned", is_written=True),
        Constant(CS, "pooler_nonlinearity", "tanh", is_written=True),
        Constant(CS, "attention_type", "scaled_dot_product"),
        Constant(CS, "disable_nsp", False),
        Constant(CS, "enable_vts", False, is_written=True),
        Constant(CS, "use_projection_bias_in_attention", True),
        Constant(CS, "use_ffn_bias_in_attention", True),
        Constant(CS, "use_ffn_bias", True),
        Constant(CS, "use_ffn_bias_in_mlm", True),
        Constant(CS, "use_output_bias_in_mlm", True),
        Constant(TF, "disable_nsp", False),
    ),
    formats=(HF, *CS_FORMATS, TF),
    hf_prefix="",
    hf_class="BertForPreTraining",
    cs_class="BertPretrainModel",
    ignored={HF: r"bert\.embeddings\.position_ids|cls\.predictions\.decoder\.bias", CS: _RUN_STATE, TF: _SLOTS},
)

_LLAMA = Model(
    name="llama",
    tensors=_llama,
    config_keys=(
        ConfigKey("vocab_size", "vocab_size", "vocab_size", 32000),
        ConfigKey("hidden_size", "hidden_size", "hidden_size", 4096),
        ConfigKey("num_hidden_layers", "num_hidden_layers", "num_hidden_layers", 32),
        ConfigKey("num_attention_heads", "num_heads", "num_heads", 32),
        ConfigKey("intermediate_size", "filter_size", "filter_size", 11008),
        ConfigKey("max_position_embeddings", "max_position_embeddings", "max_position_embeddings", 2048),
        ConfigKey("rms_norm_eps", "layer_norm_epsilon", "layer_norm_epsilon", 1e-6),
        ConfigKey("initializer_range", "initializer_range", "initializer_range", 0.02),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", False),
        ConfigKey("hidden_act", "nonlinearity", "nonlinearity", "silu"),
        ConfigKey("num_key_value_heads", None, "num_kv_heads"),
        ConfigKey("rope_theta", None, "rope_theta", 10000.0),
    ),
    constants=(
        *(item for item in _FIXED if item.key != "norm_first"),
        Constant(HF, "attention_bias", False),
        Constant(HF, "mlp_bias", False),
        Constant(CS, "norm_first", True, is_written=True),
        Constant(CS, "position_embedding_type", "rotary", is_written=True),
        Constant(CS, "attention_type", "scaled_dot_product", is_written=True),
        Constant(CS, "use_projection_bias_in_attention", False, is_written=True),
        Constant(CS, "use_ffn_bias_in_attention", False, is_written=True),
        Constant(CS, "use_ffn_bias", False, is_written=True),
        Constant(CS, "use_bias_in_output", False, is_written=True),
        Constant(CS, "use_rms_norm", True, is_written=True),
        Constant(CS, "dropout_rate", 0.0, is_written=True),
        Constant(CS, "embedding_dropout_rate", 0.0, is_written=True),
        Constant(CS, "attention_dropout_rate", 0.0, is_written=True),
    ),
    formats=(HF, "cs-1.9", TF),
    hf_prefix="model.",
    hf_class="LlamaForCausalLM",
    cs_class="GPT2LMHeadModel",
    ignored={HF: r".*rotary_emb\.inv_freq", CS: _RUN_STATE, TF: _SLOTS},
    cs_copies={"ln_f.weight": "transformer_decoder.norm.weight"},
)


def _bert_encoder(config: Config) -> list[Tensor]:
    """BertModel: the encoder and its pooler, names without `bert.`."""
    found = []
    for tensor in _bert(config):
        if tensor.key.startswith("bert_encoder."):
            hf = tensor.places[HF]
            places = tensor.places | {HF: Place(hf.name.removeprefix("bert."), hf.layout)}
            found.append(Tensor(tensor.key, places))
    return found


_BERT_HEADLESS = Model(
    name="bert-headless",
    tensors=_bert_encoder,
    config_keys=_BERT.config_keys,
    constants=_BERT.constants,
    formats=_BERT.formats,
    hf_prefix="",
    hf_class="BertModel",
    cs_class="BertPretrainModel",
    ignored={
        HF: r"(bert\.)?embeddings\.position_ids|cls\..*",
        CS: rf"{_RUN_STATE}|(model\.)*bert_(mlm|cls)_head\..*",
        TF: rf"{_SLOTS}|mlm_layer/.*|cls_layer/cls_output_dense/.*",
    },
    has_head=False,
)

_T5 = Model(
    name="t5",
    tensors=_t5,
    config_keys=(
        ConfigKey("vocab_size", "src_vocab_size", "src_vocab_size", 32128),
        ConfigKey("d_model", "d_model", "d_model", 512),
        ConfigKey("d_kv", "d_kv", "d_kv", 64),
        ConfigKey("d_ff", "d_ff", "d_ff", 2048),
        ConfigKey("num_layers", "encoder_num_hidden_layers", "encoder_num_hidden_layers", 6),
        ConfigKey("num_decoder_layers", "decoder_num_hidden_layers", "decoder_num_hidden_layers"),
        ConfigKey("num_heads", "num_heads", "num_heads", 8),
        ConfigKey(
            "relative_attention_num_buckets", "relative_attention_num_buckets", "relative_attention_num_buckets", 32
        ),
        ConfigKey("dropout_rate", "dropout_rate", "dropout_rate", 0.1),
        ConfigKey("layer_norm_epsilon", "layer_norm_epsilon", "layer_norm_epsilon", 1e-6),
        ConfigKey("feed_forward_proj", "encoder_nonlinearity", "nonlinearity", "relu"),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", True),
    ),
    constants=(
        Constant(HF, "is_encoder_decoder", True),
        Constant(HF, "relative_attention_max_distance", 128),
        Constant(CS, "use_projection_bias_in_attention", False),
        Constant(CS, "position_embedding_type", "relative"),
        Constant(CS, "use_dropout_outside_residual_path", True),
        Constant(CS, "share_encoder_decoder_embedding", True),
        Constant(CS, "use_pre_encoder_decoder_dropout", False),
        Constant(CS, "use_ffn_bias", False),
        Constant(CS, "use_transformer_initialization", False),
        Constant(TF, "relative_attention_max_distance", 128),
        Constant(TF, "use_t5_layer_norm", True),
    ),
    formats=(HF, *CS_FORMATS, TF),
    hf_prefix="",
    hf_class="T5ForConditionalGeneration",
    cs_class="T5ForConditionalGeneration",
    ignored={HF: r"(encoder|decoder)\.embed_tokens\.weight", CS: _RUN_STATE, TF: _SLOTS},
    cs_copies={"decoder_embeddings.word_embeddings.weight": "encoder_embeddings.word_embeddings.weight"},
)

MODELS: dict[str, Model] = {model.name: model for base in (_GPT2, _GPTJ, _LLAMA) for model in _with_headless(base)} | {
    model.name: model for model in (_BERT, _BERT_HEADLESS, _T5)
}
