"""Lines of tokens -> pre-training samples with fixed masks (Devlin et al., arXiv 1810.04805, Appendix A.2).

A sample is [CLASS] first piece [SEPARATOR] second piece [SEPARATOR]; each piece is whole lines of the text, cut if
the sample is full. This module uses NumPy only; the script that calls it needs TensorFlow only to write files.

Differs from the paper: tokens that do not fit are cut from the start of the first piece or the end of the second, and
samples are as long as possible.

# S sequence, P predictions
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cerebras_tensorflow.errors import SettingsError

CLASS, SEPARATOR, MASK, PADDING = 256, 257, 258, 259  # ids after the bytes
IS_NEXT, IS_RANDOM = 0, 1
NEXT_SENTENCE = "next_sentence_labels"  # of TFRecord files
Line = Sequence[int]


@dataclass(frozen=True)
class PairVocabulary:
    """The special tokens, and the tokens that may replace a masked one."""

    classify: int
    separator: int
    mask: int
    padding: int
    ordinary: Sequence[int]


BYTES = PairVocabulary(CLASS, SEPARATOR, MASK, PADDING, range(256))


def vocabulary_of(tokens: Mapping[str, int]) -> PairVocabulary:
    """Return the vocabulary of a tokenizer, as a mapping from token to id.

    Raises:
        SettingsError: If it lacks one of [CLS], [SEP], [MASK] and [PAD].
    """
    names = ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
    missing = [name for name in names if name not in tokens]
    if missing:
        raise SettingsError(f"the tokenizer has no token {missing[0]}; BERT needs {', '.join(names)}")
    special = {tokens[name] for name in (*names, "[UNK]") if name in tokens}
    ordinary = sorted(set(tokens.values()) - special)
    classify, separator, mask, padding = (tokens[name] for name in names)
    return PairVocabulary(classify, separator, mask, padding, ordinary)


def pair_records(
    documents: Sequence[Sequence[Line]],
    sequence: int,
    predictions: int,
    vocabulary: PairVocabulary = BYTES,
    masked_lm_prob: float = 0.15,
    seed: int = 0,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield samples under the names that `bert/data.py` reads; they depend only on the seed.

    Args:
        documents: Lines of tokens. The second piece of a random pair comes from another document, if there is one.
        sequence: S; shorter samples are padded.
        predictions: P, the most tokens that are masked.
        vocabulary: Special tokens.
        masked_lm_prob: Share of the tokens to mask.
        seed: Seed of the pairs and the masks.

    Raises:
        SettingsError: If S is below 5, P is not between 1 and S - 3, or the documents hold less than two lines.
    """
    room = sequence - 3
    if room < 2 or not 1 <= predictions <= room:
        raise SettingsError(
            f"max_seq_length is {sequence}, max_predictions_per_seq {predictions}; expected at least 5, and 1 to "
            f"max_seq_length - 3 = {room}"
        )
    # A longer line would leave no room for a second piece.
    cut = [[piece for line in lines for piece in _pieces(line, room // 2)] for lines in documents]
    found = [lines for lines in cut if lines]
    if sum(map(len, found)) < 2:
        raise SettingsError(f"the texts hold less than two lines, or less than {room // 2 + 1} tokens; expected pairs")
    generator = np.random.default_rng(seed)
    for first, second, label in _pairs(found, room, generator):
        yield _masked(first, second, label, sequence, predictions, vocabulary, masked_lm_prob, generator)


def _pieces(line: Line, size: int) -> Iterator[Line]:
    return (line[start : start + size] for start in range(0, len(line), size))


def _pairs(
    documents: list[list[Line]], room: int, generator: np.random.Generator
) -> Iterator[tuple[list[int], list[int], int]]:
    for number, lines in enumerate(documents):
        position = 0
        while position < len(lines):
            end = position + len(_filling(lines[position:], room))
            middle = int(generator.integers(position + 1, max(position + 2, end)))
            first = list(itertools.chain(*lines[position:middle]))
            if middle == end or generator.random() < 0.5:
                others, start = _elsewhere(documents, number, middle, generator)
                second = list(itertools.chain(*_filling(others[start:], room - len(first))))
                label, position = IS_RANDOM, middle  # the unused lines begin the next sample
            else:
                second, label, position = list(itertools.chain(*lines[middle:end])), IS_NEXT, end
            while len(first) + len(second) > room:
                # Cut at the outer ends, so that a second piece still follows its first.
                if len(first) > len(second):
                    del first[0]
                else:
                    del second[-1]
            yield first, second, label


def _filling(lines: Sequence[Line], room: int) -> list[Line]:
    """Return as many of the first lines as fill the room; at least one."""
    sizes = itertools.accumulate((len(line) for line in lines), initial=0)
    count = sum(1 for _ in itertools.takewhile(lambda size: size < room, sizes))
    return list(lines[: max(1, min(count, len(lines)))])


def _elsewhere(
    documents: list[list[Line]], number: int, following: int, generator: np.random.Generator
) -> tuple[list[Line], int]:
    """Return a document and the number of one of its lines, never the line that follows the first piece."""
    if len(documents) > 1:
        other = int(generator.integers(len(documents) - 1))
        lines = documents[other + (other >= number)]
        return lines, int(generator.integers(len(lines)))
    (lines,) = documents
    if following == len(lines):
        return lines, int(generator.integers(len(lines)))
    start = int(generator.integers(len(lines) - 1))
    return lines, start + (start >= following)


def _masked(
    first: list[int],
    second: list[int],
    label: int,
    sequence: int,
    predictions: int,
    vocabulary: PairVocabulary,
    masked_lm_prob: float,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Return a sample, masked as BERT does: 80 % of the drawn tokens become MASK, 10 % another token, 10 % stay."""
    tokens = [vocabulary.classify, *first, vocabulary.separator, *second, vocabulary.separator]
    ids_S = np.full([sequence], vocabulary.padding, np.int64)
    ids_S[: len(tokens)] = tokens
    maskable = np.delete(np.arange(1, len(tokens) - 1), len(first))
    count = min(predictions, max(1, round(len(maskable) * masked_lm_prob)))
    drawn = np.sort(generator.choice(maskable, count, replace=False))
    original = ids_S[drawn]
    kind = generator.random(count)
    other = generator.choice(np.asarray(vocabulary.ordinary), count)
    ids_S[drawn] = np.where(kind < 0.8, vocabulary.mask, np.where(kind < 0.9, other, original))
    places = np.arange(sequence)
    filled = (0, predictions - count)
    return {
        "input_ids": ids_S,
        "input_mask": (places < len(tokens)).astype(np.int64),
        "segment_ids": ((places >= len(first) + 2) & (places < len(tokens))).astype(np.int64),
        "masked_lm_positions": np.pad(drawn, filled),
        "masked_lm_ids": np.pad(original, filled),
        "masked_lm_weights": np.pad(np.ones([count], np.float32), filled),
        NEXT_SENTENCE: np.array([label], np.int64),
    }
