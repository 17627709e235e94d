#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer (the Hugging Face library `tokenizers`) on texts; needs no network.

python scripts/train_tokenizer.py --vocab_size 1000 --output tokenizer.json TEXT...
"""

import argparse
import sys
from pathlib import Path

# Special tokens that convert_dataset_to_hdf5.py needs for the samples of each model.
SPECIAL_TOKENS = {
    "gpt": ["<|endoftext|>"],
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "t5": ["<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in range(100))],
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Train a byte-level BPE tokenizer on texts.")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="text files")
    parser.add_argument(
        "--vocab_size", type=int, required=True, help="number of tokens, including the 256 bytes and the special tokens"
    )
    parser.add_argument(
        "--model", choices=SPECIAL_TOKENS, default="gpt", help="model whose special tokens to add (default: gpt)"
    )
    parser.add_argument("--output", required=True, help="file to write, such as tokenizer.json")
    options = parser.parse_args()
    special = SPECIAL_TOKENS[options.model]
    least = 256 + len(special)
    if options.vocab_size < least:
        parser.error(f"--vocab_size is {options.vocab_size}; expected at least {least}: the bytes and {special}")
    missing = [path for path in options.texts if not Path(path).is_file()]
    if missing:
        parser.error(f"no such file: {missing[0]}")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ModuleNotFoundError as exc:
        parser.error(f"{exc}; install what the data scripts need: pip install '.[data]' in the repository")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        special_tokens=special,
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
