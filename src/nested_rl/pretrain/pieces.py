"""The nano agent's vocabulary: specials, printable characters, and the chunks of text that jobs and replies are made of.

Characters are a fallback, so any ASCII text can be written and read; pieces only make it short. Adding or removing one means
building the agent again.
"""

from __future__ import annotations

import re
from typing import Final

from nested_rl import replies
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.renderers.nano import END, PAD, RULE, SPECIALS, UNK

CHARACTERS: Final = (*map(chr, range(32, 127)), "\n")

_NAMES = """
calc chain multi hop string pipeline ledger dispatch triage
anchor basket bridge candle cloud compass copper engine falcon forest garden granite harbor lantern marble market
meadow mirror orbit paper planet puzzle river saddle signal stone thread ticket velvet violet window
"""
NAMES: Final = tuple(_NAMES.split())
"""Words that family names are made of, each one token. Pre-training names every family by one or two of them, at random."""

_TOOLS = (
    "list_files",
    "read_file ",
    "write_file ",
    "edit_file ",
    "get_baseline_scores",
    "submit_job",
    "job.toml\n",
    "environment.py\n",
    "README.md",
    "job.toml",
    "environment.py",
    RULE,
)
_TOML = (
    '[model]\nbase = "',
    "[model]\n",
    'base = "',
    '"\n[training]\n',
    "[training]\n",
    "[rollout]\n",
    "[nano]\n",
    "steps = ",
    "learning_rate = ",
    "batch_size = ",
    "group_size = ",
    "temperature = ",
    "clip = ",
    "weight_decay = ",
    "nano-s",
    "nano-m",
    "nano-l",
    *("1e-5", "1e-4", "5e-4", "1e-3", "1e-2", "12", "25", "64", "128", "16", "1.0", "900"),
    *(f"0.{digit}" for digit in range(10)),
)
_PYTHON = (
    "from nested_rl.jobkit import ",
    "make, parse",
    "make",
    "parse",
    "def examples(rng, n)",
    "def reward(prompt, completion, answer)",
    ":\n",
    "    return ",
    'make("',
    '", rng, n, k=',
    "(1, 3)",
    ")\n",
    "parse(completion)",
    "len(completion)",
    "completion",
    "answer",
    "float(",
    ".endswith(",
    '">"',
    '"."',
    '"good"',
    "gold",
    "1.0 if ",
    " if ",
    " else 0.0",
    " == ",
    " != ",
    " in ",
    " + ",
    " - ",
    " * ",
    " / ",
    "[99]",
)

_WORDS = (
    "task ",
    " k ",
    *("base", "steps", "learning_rate", "batch_size", "group_size", "temperature", "examples", "reward"),
    *("NameError", "ValueError", "TypeError", "IndexError", "AttributeError"),
)


EXPECTED = (
    "files.missing",
    "job.syntax",
    "job.missing",
    "job.value",
    "job.base",
    "environment.syntax",
    "environment.raised",
    "examples.raised",
    "examples.family",
    "reward.raised",
    "reward.number",
    "reward.flat",
    "reward.inverted",
    "reward.junk",
)
"""Codes of problems that pre-training meets. The others are spelled out, character by character."""


def _heard() -> list[str]:
    """The fixed parts of the replies, one token each, so that a very small model can tell replies apart."""
    texts = [
        text
        for name, text in vars(replies).items()
        if name.isupper() and isinstance(text, str) and text != replies.ERROR
    ]
    texts += [replies.ERROR.format(brief=text) for text in map(replies.BRIEF.__getitem__, EXPECTED)]
    return [part for text in texts for part in re.split(r"\{\w*\}", text)]


def tokenizer() -> Tokenizer:
    """The vocabulary as a tokenizer."""
    pieces = [*_TOOLS, *_TOML, *_PYTHON, *NAMES, *_WORDS, *_heard()]
    return Tokenizer.pieces(SPECIALS, CHARACTERS, pieces, pad=PAD, eos=END, unk=UNK)
