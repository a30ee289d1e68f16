"""Text to ids exactly as transformers does it with the same `tokenizer.json`.

Two kinds from one class. Characters: every token is one character, or a special. Pieces: longer strings are matched first,
leftmost and longest; what is left falls back to single characters. In `tokenizer.json` pieces are added tokens that are not
special, characters are a BPE vocabulary without merges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nested_rl.errors import SettingsError, UnknownName


class Tokenizer:
    """`vocab[i]` is the text of token i. Specials mean something to the harness; `unk` stands for what is not in the vocabulary.

    >>> t = Tokenizer.pieces(["<pad>", "<end>", "<unk>"], "abc", ["abc", "bc"], pad="<pad>", eos="<end>", unk="<unk>")
    >>> [t.vocab[i] for i in t.encode("aabcbc<end>z")]
    ['a', 'abc', 'bc', '<end>', '<unk>']
    """

    def __init__(self, vocab: Sequence[str], specials: Sequence[str], *, pad: str, eos: str, unk: str) -> None:
        if len(set(vocab)) != len(vocab) or not all(vocab):
            raise SettingsError("tokenizer: tokens must be different and not empty")
        missing = [t for t in (*specials, pad, eos, unk) if t not in vocab]
        if missing:
            raise SettingsError(f"tokenizer: specials {missing} are not in the vocabulary")
        self.vocab = tuple(vocab)
        self.specials = tuple(dict.fromkeys([*specials, pad, eos, unk]))
        self._ids = {text: i for i, text in enumerate(self.vocab)}
        self.pad, self.eos, self.unk = pad, eos, unk
        self.pad_id, self.eos_id, self.unk_id = self._ids[pad], self._ids[eos], self._ids[unk]
        self.special_ids: Mapping[str, int] = {t: self._ids[t] for t in self.specials}
        self._pattern = _longest_first(t for t in self.vocab if len(t) > 1 or t in self.specials)
        self._text_pattern = _longest_first(t for t in self.vocab if len(t) > 1 and t not in self.specials)

    @classmethod
    def characters(
        cls, chars: Iterable[str], *, pad: str = "<|pad|>", eos: str = ".", unk: str = "<|unk|>"
    ) -> Tokenizer:
        """One token a character: pad, eos, the characters, unk."""
        rest = [c for c in chars if c != eos]
        return cls([pad, eos, *rest, unk], [pad, eos, unk], pad=pad, eos=eos, unk=unk)

    @classmethod
    def pieces(
        cls, specials: Sequence[str], chars: Iterable[str], pieces: Iterable[str], *, pad: str, eos: str, unk: str
    ) -> Tokenizer:
        """Specials, single characters, longer pieces, in this order."""
        longer = [p for p in dict.fromkeys(pieces) if len(p) > 1]
        return cls([*specials, *chars, *longer], specials, pad=pad, eos=eos, unk=unk)

    def __len__(self) -> int:
        return len(self.vocab)

    def id(self, token: str) -> int:
        """The id of one token by its text; raises UnknownName."""
        try:
            return self._ids[token]
        except KeyError:
            raise UnknownName("token", token, self.vocab) from None

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """Ids of a text. With `specials=False` the text of a special is plain characters: nothing said can fake one."""
        pattern = self._pattern if specials else self._text_pattern
        get, unk = self._ids.get, self.unk_id
        if specials:
            return [get(token, unk) for token in pattern.findall(text)]
        hidden = self.special_ids
        return [unk if token in hidden else get(token, unk) for token in pattern.findall(text)]

    def decode(self, ids: Iterable[int], *, skip_specials: bool = False) -> str:
        """Text of ids; specials are shown unless skipped."""
        texts = (self.vocab[i] for i in ids)
        return "".join(t for t in texts if t not in self.special_ids) if skip_specials else "".join(texts)

    def to_hf(self) -> dict[str, Any]:
        """`tokenizer.json`."""
        added = [t for t in self.vocab if t in self.special_ids or len(t) > 1]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": self._ids[t],
                    "content": t,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": t in self.special_ids,
                }
                for t in added
            ],
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": self.unk,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self._ids,
                "merges": [],
            },
        }

    def hf_config(self, max_length: int) -> dict[str, Any]:
        """`tokenizer_config.json`."""
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": self.pad,
            "eos_token": self.eos,
            "unk_token": self.unk,
            "padding_side": "left",
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
        }

    @classmethod
    def from_hf(cls, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> Tokenizer:
        """Read both files; refuse a tokenizer that splits text in another way."""
        model = tokenizer.get("model") or {}
        if model.get("type") != "BPE" or model.get("merges"):
            raise SettingsError("tokenizer: only a BPE vocabulary without merges is supported")
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if tokenizer.get(part) is not None:
                raise SettingsError(f"tokenizer: {part} is not supported")
        ids = {**model.get("vocab", {}), **{t["content"]: t["id"] for t in tokenizer.get("added_tokens", ())}}
        if sorted(ids.values()) != list(range(len(ids))):
            raise SettingsError("tokenizer: ids must be 0, 1, 2, … without gaps")
        vocab = sorted(ids, key=ids.__getitem__)
        specials = [t["content"] for t in tokenizer.get("added_tokens", ()) if t.get("special")]
        names = {kind: config.get(f"{kind}_token") for kind in ("pad", "eos", "unk")}
        absent = [f"{kind}_token" for kind, text in names.items() if not isinstance(text, str)]
        if absent:
            raise SettingsError(f"tokenizer: {', '.join(absent)} missing in tokenizer_config.json")
        return cls(vocab, specials, pad=str(names["pad"]), eos=str(names["eos"]), unk=str(names["unk"]))


def _longest_first(tokens: Iterable[str]) -> re.Pattern[str]:
    # alternatives are tried in order, so sorting by length makes the match leftmost-longest; then any one character
    ordered = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, ordered), "."]), re.DOTALL)
