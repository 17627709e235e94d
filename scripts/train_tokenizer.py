#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer (the Hugging Face library `tokenizers`) on texts; needs no network.

python scripts/train_tokenizer.py --vocab_size 1000 --output tokenizer.json TEXT...
"""

import argparse
import sys
from pathlib import Path

END_OF_TEXT = "<|endoftext|>"


def main() -> int:
    """Train as the options say."""
    parser = argparse.ArgumentParser(description="Train a byte-level BPE tokenizer on texts.")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="text files")
    parser.add_argument("--vocab_size", type=int, required=True, help="tokens, the 256 bytes and the end among them")
    parser.add_argument("--output", required=True, help="tokenizer.json to write")
    options = parser.parse_args()
    if options.vocab_size < 257:
        parser.error(f"--vocab_size is {options.vocab_size}; expected at least 257: the bytes and the end of a text")
    missing = [path for path in options.texts if not Path(path).is_file()]
    if missing:
        parser.error(f"no such file: {missing[0]}")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(options.texts, trainer)
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(options.output)
    print(f"{tokenizer.get_vocab_size()} tokens saved in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
