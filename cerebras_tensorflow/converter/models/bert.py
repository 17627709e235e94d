"""BERT: pre-training, the encoder alone, and the models for fine-tuning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from cerebras_tensorflow.converter.models import parts
from cerebras_tensorflow.converter.rules import (
    CS,
    CS_OLD,
    HF,
    REQUIRED,
    TF,
    Config,
    ConfigConversionError,
    ConfigKey,
    Constant,
    Model,
    Tensor,
    family,
    release,
)

logger = logging.getLogger(__name__)

_POSITIONS = {"absolute": "learned"}  # position_embedding_type of HF and CS


def _encoder(config: Config, cs: str, hf: str, is_pooler_optional: bool = False) -> list[Tensor]:
    """Return the tensors of the encoder and its pooler, with the name prefixes of CS and HF."""
    embedding, theirs = f"{cs}embedding_layer", f"{hf}embeddings"
    tensors = [
        parts.plain(
            f"{embedding}.word_embeddings.weight",
            f"{theirs}.word_embeddings.weight",
            "input_embedding/embedding_weights",
        ),
        parts.plain(
            f"{embedding}.position_embeddings.weight",
            f"{theirs}.position_embeddings.weight",
            "position_embedding/position_embedding_weights",
        ),
        parts.plain(
            f"{embedding}.segment_embeddings.weight",
            f"{theirs}.token_type_embeddings.weight",
            "segment_embedding/segment_embedding_weights",
        ),
        *parts.norm(f"{cs}embed_ln_f", f"{theirs}.LayerNorm", "pre_encoder_layer_norm"),
    ]
    for i in range(config["num_hidden_layers"]):
        block, theirs = f"{cs}transformer_encoder.layers.{i}", f"{hf}encoder.layer.{i}"
        attention = f"encoder/{parts.numbered('self_attention', i)}"
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            tensors += parts.linear(key, f"{theirs}.attention.self.{name}", f"{attention}/{letter}_projection")
        key = f"{block}.self_attn.proj_output_dense_layer"
        tensors += parts.linear(key, f"{theirs}.attention.output.dense", f"{attention}/output_transform")
        for number, name in ((1, "attention.output"), (2, "output")):
            scope = f"encoder/{parts.numbered('layer_normalization_layer', 2 * i + number - 1)}"
            tensors += parts.norm(f"{block}.norm{number}", f"{theirs}.{name}.LayerNorm", scope)
        for part, name in enumerate(("intermediate", "output")):
            scope = f"encoder/{parts.numbered('ffn', i)}/{parts.numbered('dense_layer', 2 * i + part)}"
            tensors += parts.linear(f"{block}.ffn.ffn.{part}.linear_layer", f"{theirs}.{name}.dense", scope)
    pooler = f"{cs}pooler.pooler.ffn.0.linear_layer"
    tensors += parts.linear(pooler, f"{hf}pooler.dense", "cls_layer/cls_dense", is_optional=is_pooler_optional)
    return tensors


def _pretraining(config: Config) -> list[Tensor]:
    tensors = _encoder(config, "bert_encoder.", "bert.")
    key = "bert_cls_head.classifier.ffn.0.linear_layer"
    tensors += parts.linear(key, "cls.seq_relationship", "cls_layer/cls_output_dense")
    key = "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer"
    tensors += parts.linear(key, "cls.predictions.transform.dense", "mlm_layer/mlm_ffn")
    tensors += parts.norm(
        "bert_mlm_head.mlm_transform.ln", "cls.predictions.transform.LayerNorm", "mlm_layer/mlm_layer_norm"
    )
    head, theirs = "bert_mlm_head.classifier.ffn.0.linear_layer", "cls.predictions"
    weight = parts.plain(f"{head}.weight", f"{theirs}.decoder.weight", None)
    tensors.append(parts.tied(weight, "bert_encoder.embedding_layer.word_embeddings.weight"))
    copies = {HF: (f"{theirs}.bias",), CS_OLD: (f"{theirs}.bias",)}
    return [*tensors, parts.plain(f"{head}.bias", f"{theirs}.decoder.bias", "mlm_layer/mlm_bias", copies=copies)]


def _headless(config: Config) -> list[Tensor]:
    return _encoder(config, "bert_encoder.", "")


def _with_classifier(hf: str, tf: str | None, is_pooler_optional: bool) -> Callable[[Config], list[Tensor]]:
    """Return the tensors function of the encoder with a dense layer `classifier`."""

    def tensors(config: Config) -> list[Tensor]:
        return [*_encoder(config, "bert.", "bert.", is_pooler_optional), *parts.linear("classifier", hf, tf)]

    return tensors


def _read(config: Config, _values: Config, kind: str) -> Config:
    settings: Config = {}
    if kind == HF and config.get("position_embedding_type") is not None:
        if config["position_embedding_type"] not in _POSITIONS:
            raise ConfigConversionError(
                f"CS model doesn't support HF's position_embedding_type={config['position_embedding_type']}"
            )
        settings["position_embedding_type"] = config["position_embedding_type"]
    if kind == TF:
        settings["position_embedding_type"] = "absolute"
    if kind == CS and "position_embedding_type" in config:
        names = {theirs: name for name, theirs in _POSITIONS.items()}
        if config["position_embedding_type"] not in names:
            raise ConfigConversionError(
                f"HF model doesn't support CS's position_embedding_type={config['position_embedding_type']}"
            )
        settings["position_embedding_type"] = names[config["position_embedding_type"]]
    return settings


def _check_nonlinearities(config: Config, source: str) -> None:
    """Check a CS source: transformers has only one nonlinearity, and tanh in the pooler."""
    encoder = config.get("encoder_nonlinearity", "gelu")
    # 1.7 has neither key. Its pooler uses the encoder's nonlinearity, and its masked-token head uses gelu.
    pooler = config.get("pooler_nonlinearity") or (encoder if source != "cs-1.7" else "tanh")
    if pooler != "tanh":
        raise ConfigConversionError(
            f"Can't convert config with pooler_nonlinearity={pooler}. Only tanh is supported. (Without this "
            "setting, cs-1.8 uses encoder_nonlinearity: set pooler_nonlinearity: tanh if the model was trained so.)"
        )
    if (config.get("mlm_nonlinearity") or encoder) != encoder:
        raise ConfigConversionError("HF model doesn't support different encoder & mlm nonlinearities")


def _write(values: Config, _target_values: Config, target: str) -> Config:
    position = values.get("position_embedding_type")
    if family(target) == HF:
        return {} if position is None else {"position_embedding_type": position}
    if family(target) != CS:
        return {}
    settings: Config = {} if position is None else {"position_embedding_type": _POSITIONS[position]}
    if release(target) < (2, 1):
        settings["enable_vts"] = False
    if release(target) >= (2, 3):
        settings["freeze_ffn_bias_in_glu"] = False
    if target == "cs-1.7":
        if values["hidden_act"] != "gelu":
            logger.warning(
                "the masked-token head of %s uses gelu; hidden_act=%s applies only to the encoder",
                target,
                values["hidden_act"],
            )
            settings["mlm_nonlinearity"] = "gelu"
        return settings
    return settings | {"pooler_nonlinearity": "tanh", "mlm_nonlinearity": values["hidden_act"]}


def _num_labels(config: Config) -> int:
    if config.get("num_labels") is not None:
        return int(config["num_labels"])
    return len(config["id2label"]) if config.get("id2label") else 2


def _read_classifier(config: Config, values: Config, kind: str) -> Config:
    settings = _read(config, values, kind)
    if kind != HF:
        return settings
    labels = _num_labels(config)
    settings["num_labels"] = labels
    if config.get("classifier_dropout") is None:
        settings["classifier_dropout"] = values["hidden_dropout_prob"]
    return settings


def _read_sequence_classifier(config: Config, values: Config, kind: str) -> Config:
    settings = _read_classifier(config, values, kind)
    if kind == HF and config.get("problem_type") is None:
        if settings["num_labels"] != 1:
            raise ConfigConversionError(
                f"Cannot infer the problem_type of a config with num_labels={settings['num_labels']}. "
                "Set problem_type: regression, single_label_classification or multi_label_classification."
            )
        settings["problem_type"] = "regression"
    return settings


def _write_sequence_classifier(values: Config, target_values: Config, target: str) -> Config:
    if family(target) == TF and values["problem_type"] != "single_label_classification":
        raise ConfigConversionError(
            f"Can't convert config with problem_type={values['problem_type']}. Only single_label_classification is "
            "supported."
        )
    return _write(values, target_values, target)


def _write_token_classifier(values: Config, target_values: Config, target: str) -> Config:
    settings = _write(values, target_values, target)
    return settings | {"loss_weight": 1.0, "include_padding_in_loss": False} if family(target) == CS else settings


def _read_questions(config: Config, values: Config, kind: str) -> Config:
    if kind == HF and _num_labels(config) != 2:
        raise ConfigConversionError(f"Can't convert config with num_labels={_num_labels(config)}. Only 2 is supported.")
    if kind == CS and "num_labels" in config:
        raise ConfigConversionError("num_labels should not appear in the config")
    return _read(config, values, kind)


def _write_questions(values: Config, target_values: Config, target: str) -> Config:
    settings = _write(values, target_values, target)
    return settings | {"num_labels": 2} if family(target) == HF else settings


_KEYS = (
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
)
_CONSTANTS: tuple[Constant, ...] = (
    *parts.checked(HF, type_vocab_size=2, is_decoder=False, add_cross_attention=False),
    *parts.checked(
        CS,
        disable_nsp=False,
        attention_type="scaled_dot_product",
        use_projection_bias_in_attention=True,
        use_ffn_bias_in_attention=True,
        use_ffn_bias=True,
        use_ffn_bias_in_mlm=True,
        use_output_bias_in_mlm=True,
    ),
)
_FORMATS = (HF, CS_OLD, *parts.CS_FORMATS, TF)
_POSITION_IDS = r"embeddings\.position_ids"
_OLD_NORMS = tuple((rf"(.*LayerNorm)\.{old}", rf"\1.{new}") for old, new in (("gamma", "weight"), ("beta", "bias")))

BERT = Model(
    name="bert",
    tensors=_pretraining,
    config_keys=_KEYS,
    constants=(*_CONSTANTS, Constant(TF, "disable_nsp", False)),
    formats=_FORMATS,
    hf_class="BertForPreTraining",
    cs_class="BertPretrainModel",
    hf_heads=(),
    model_type="bert",
    read=_read,
    write=_write,
    check_source=_check_nonlinearities,
    read_keys={
        HF: frozenset({"position_embedding_type"}),
        CS: frozenset(
            {
                "position_embedding_type",
                "mlm_nonlinearity",
                "pooler_nonlinearity",
                "enable_vts",
                "freeze_ffn_bias_in_glu",
            }
        ),
        TF: frozenset({"num_labels"}),
    },
    ignored={
        HF: rf"bert\.{_POSITION_IDS}",
        CS_OLD: rf"{parts.RUN_STATE}|bert\.{_POSITION_IDS}",
        CS: parts.RUN_STATE,
        TF: parts.SLOTS,
    },
    renamed={HF: _OLD_NORMS, CS_OLD: _OLD_NORMS},
)
_HEADLESS = replace(
    BERT,
    name="bert-headless",
    tensors=_headless,
    formats=(HF, *parts.CS_FORMATS, TF),
    hf_class="BertModel",
    ignored={
        HF: rf"(bert\.)?{_POSITION_IDS}|cls\..*",
        CS: rf"{parts.RUN_STATE}|(model\.)*bert_(mlm|cls)_head\..*",
        TF: rf"{parts.SLOTS}|mlm_layer/.*|cls_layer/cls_output_dense/.*",
    },
    head="bert_mlm_head, bert_cls_head",
    caveat="conversion to HF drops the CS model's heads; conversion to CS leaves them out, so that a run initialises "
    "them at random",
)


def _fine_tuned(name: str, hf: str, tf: str | None, is_pooler_optional: bool, **changes: object) -> Model:
    return replace(
        BERT,
        name=name,
        tensors=_with_classifier(hf, tf, is_pooler_optional),
        read_keys=BERT.read_keys | {HF: BERT.read_keys[HF] | {"num_labels", "id2label", "label2id"}},
        **changes,  # type: ignore[arg-type]
    )


_LABELS = ConfigKey("num_labels", "num_labels", "num_labels", None, cs_default=REQUIRED)
_SEQUENCE = _fine_tuned(
    "bert-sequence-classifier",
    "classifier",
    "cls_layer/cls_output_dense",
    False,
    config_keys=(
        *_KEYS,
        _LABELS,
        ConfigKey("classifier_dropout", "task_dropout", "task_dropout", 0.1, cs_default=REQUIRED),
        ConfigKey("problem_type", "problem_type", "problem_type", "single_label_classification", cs_default=REQUIRED),
    ),
    hf_class="BertForSequenceClassification",
    cs_class="BertForSequenceClassification",
    read=_read_sequence_classifier,
    write=_write_sequence_classifier,
)
_TOKENS = _fine_tuned(
    "bert-token-classifier",
    "classifier",
    "output_logits",
    True,
    config_keys=(
        *_KEYS,
        replace(_LABELS, cs="num_classes", tf="num_classes"),
        ConfigKey("classifier_dropout", "encoder_output_dropout_rate", "encoder_output_dropout_rate", 0.1),
    ),
    hf_class="BertForTokenClassification",
    cs_class="BertForTokenClassification",
    read=_read_classifier,
    write=_write_token_classifier,
)
_QUESTIONS = _fine_tuned(
    "bert-q&a",
    "qa_outputs",
    "qa_logits",
    True,
    hf_class="BertForQuestionAnswering",
    cs_class="BertForQuestionAnswering",
    read=_read_questions,
    write=_write_questions,
)
_SUMMARIES = _fine_tuned(
    "bert-summarization",
    "classifier",
    None,
    True,
    formats=(CS_OLD, *parts.CS_FIRST_FORMATS),
    hf_class=None,
    cs_class="BertForSummarization",
)
# Since 2.1, the question-answering model has this name.
_NEW_QUESTIONS = replace(_QUESTIONS, name="bert-qa")
MODELS = (BERT, _HEADLESS, _SEQUENCE, _TOKENS, _QUESTIONS, _NEW_QUESTIONS, _SUMMARIES)
