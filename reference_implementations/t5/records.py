"""Tokens -> samples with missing spans at fixed places (Raffel et al., arXiv 1910.10683, Section 3.1.4).

The text is cut into pieces of equal length. The length is chosen so that the kept tokens of a piece, with sentinels and
the end token, are S tokens; no sample needs padding. This module uses NumPy only; the script that calls it needs
TensorFlow only to write files.

# S sequence of the encoder, T of the decoder
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cerebras_tensorflow.errors import SettingsError

END, START, FIRST_SENTINEL = 256, 257, 258  # ids after the bytes


@dataclass(frozen=True)
class SpanVocabulary:
    """The special tokens."""

    end: int
    start: int  # first token of the decoder's input
    sentinels: Sequence[int]


BYTES = SpanVocabulary(END, START, range(FIRST_SENTINEL, FIRST_SENTINEL + 100))


def vocabulary_of(tokens: Mapping[str, int]) -> SpanVocabulary:
    """Return the vocabulary of a tokenizer, as a mapping from token to id; <pad> is the decoder's first token.

    Raises:
        SettingsError: If it lacks </s>, <pad> or <extra_id_0>.
    """
    sentinels = [tokens[name] for name in itertools.takewhile(tokens.__contains__, map(_sentinel, itertools.count()))]
    missing = [name for name in ("</s>", "<pad>") if name not in tokens]
    if missing or not sentinels:
        raise SettingsError(
            f"the tokenizer has no token {(missing or [_sentinel(0)])[0]}; T5 needs </s>, <pad>, <extra_id_0>, "
            "<extra_id_1>, ..."
        )
    return SpanVocabulary(tokens["</s>"], tokens["<pad>"], sentinels)


def _sentinel(number: int) -> str:
    return f"<extra_id_{number}>"


@dataclass(frozen=True)
class SpanSizes:
    """Numbers of a piece of text: its tokens, its missing tokens, and the spans that hold the missing ones."""

    text: int
    missing: int
    spans: int

    @property
    def inputs(self) -> int:
        """S: the kept tokens, a sentinel for each span, the end token."""
        return self.text - self.missing + self.spans + 1

    @property
    def targets(self) -> int:
        """T: the spans, each after its sentinel, and the end token."""
        return self.missing + self.spans + 1


def span_sizes(sequence: int, noise_density: float = 0.15, mean_span_length: float = 3.0) -> SpanSizes:
    """Return the sizes of the longest pieces of text that give S encoder tokens: 568, 85 and 28 for 512.

    Raises:
        SettingsError: If S is below 4, the share of missing tokens not between 0 and 1, or a mean span below 1 token.
    """
    if sequence < 4 or not 0.0 < noise_density < 1.0 or mean_span_length < 1.0:
        raise SettingsError(
            f"max_seq_length {sequence}, noise_density {noise_density}, mean_span_length {mean_span_length}; expected "
            "at least 4, between 0 and 1, and at least 1"
        )

    def sizes(text: int) -> SpanSizes:
        missing = min(max(round(text * noise_density), 1), text - 1)
        return SpanSizes(text, missing, min(max(round(missing / mean_span_length), 1), text - missing))

    # One more token of text makes one more input token, or none.
    fitting = itertools.takewhile(lambda found: found.inputs <= sequence, map(sizes, itertools.count(2)))
    *_, longest = fitting
    return longest


def span_records(
    tokens: Iterable[int], sizes: SpanSizes, vocabulary: SpanVocabulary = BYTES, seed: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """Yield samples under the names that `t5/data.py` reads; the places of spans depend only on the seed.

    Args:
        tokens: The tokens of all texts. Tokens at the end that do not fill a piece are left out.
        sizes: The result of `span_sizes`.
        vocabulary: Special tokens.
        seed: Seed of the places of spans.

    Raises:
        SettingsError: If there are fewer sentinels than spans.
    """
    if len(vocabulary.sentinels) < sizes.spans:
        raise SettingsError(f"{len(vocabulary.sentinels)} sentinels; expected one for each of {sizes.spans} spans")
    generator = np.random.default_rng(seed)
    stream = iter(tokens)
    while len(piece := list(itertools.islice(stream, sizes.text))) == sizes.text:
        kept = _parts(sizes.text - sizes.missing, sizes.spans, generator)
        missing = _parts(sizes.missing, sizes.spans, generator)
        inputs: list[int] = []
        targets: list[int] = []
        position = 0
        for sentinel, num_kept, num_missing in zip(vocabulary.sentinels, kept, missing, strict=False):
            middle = position + num_kept
            inputs += [*piece[position:middle], sentinel]
            position = middle + num_missing
            targets += [sentinel, *piece[middle:position]]
        yield {
            "input_ids": np.array([*inputs, vocabulary.end], np.int64),
            "decoder_input_ids": np.array([vocabulary.start, *targets], np.int64),
            "labels": np.array([*targets, vocabulary.end], np.int64),
        }


def _parts(total: int, count: int, generator: np.random.Generator) -> list[int]:
    """Divide a number into parts of at least 1, every division as likely as any other."""
    cuts = np.sort(generator.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff([0, *cuts, total]).tolist()
