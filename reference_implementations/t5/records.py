"""Tokens -> samples with missing spans, cut out once and for all (Raffel et al., arXiv 1910.10683, Section 3.1.4).

The text is cut into pieces of equal length, so long that what is left of each, with its sentinels and the end, is S
tokens; then no sample has to be filled up. NumPy alone, so that the script that writes the files needs TensorFlow only
to write.

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
    start: int  # of what the decoder reads
    sentinels: Sequence[int]


BYTES = SpanVocabulary(END, START, range(FIRST_SENTINEL, FIRST_SENTINEL + 100))


def vocabulary_of(tokens: Mapping[str, int]) -> SpanVocabulary:
    """Return the vocabulary of a tokenizer, as a mapping from token to id; <pad> begins what the decoder reads.

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
    """Tokens of a piece of text, those of them that are missing, in how many spans."""

    text: int
    missing: int
    spans: int

    @property
    def inputs(self) -> int:
        """S: what is left, a sentinel for each span, the end."""
        return self.text - self.missing + self.spans + 1

    @property
    def targets(self) -> int:
        """T: the spans, each after its sentinel, the end."""
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

    # One token more of text makes one input token more, or none.
    fitting = itertools.takewhile(lambda found: found.inputs <= sequence, map(sizes, itertools.count(2)))
    *_, longest = fitting
    return longest


def span_records(
    tokens: Iterable[int], sizes: SpanSizes, vocabulary: SpanVocabulary = BYTES, seed: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """Yield samples under the names that `t5/data.py` reads; where spans lie depends on the seed alone.

    Args:
        tokens: Of the texts, one after the other; what does not fill a piece at the end is left out.
        sizes: As `span_sizes` gives them.
        vocabulary: Special tokens.
        seed: Of the spans.

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
