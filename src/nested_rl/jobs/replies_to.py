"""Completions that the probe tries on a reward: right, wrong, junk and odd ones. Fixed, so that a verdict is repeatable."""

from __future__ import annotations

from collections.abc import Iterator

from nested_rl.jobs.surface import ProbeRules

_WORDS = ("<think>", "</think>", "step", "therefore", "the", "final", "answer", "is", "correct", "result", "boxed")
"""Words that a reward may pay for. Those that hold the answer are left out."""


def row(prompt: str, answer: str, rules: ProbeRules) -> Iterator[tuple[str, str]]:
    """(kind, completion): the answer and two wrong ones in every form, and replies that do not give it.

    >>> sorted({kind for kind, _ in row("8 * 9?", "72", ProbeRules(answer_forms=(">{answer}.",)))})
    ['junk a long reply', 'junk a stray letter', 'junk an empty reply', 'junk words without an answer', 'right 0', 'wrong 0']
    """
    for number, form in enumerate(rules.answer_forms):
        yield f"right {number}", form.format(answer=answer)
        for wrong in spoiled(answer):
            yield f"wrong {number}", form.format(answer=wrong)
    yield "junk an empty reply", ""
    yield "junk a stray letter", rules.answer_forms[0].format(answer="z" if answer != "z" else "y")
    yield "junk a long reply", ("z" if "z" not in answer else "y") * rules.reply_chars
    yield "junk words without an answer", " ".join(word for word in _WORDS if answer.lower() not in word)
    if rules.talkative:
        if answer.lower() not in prompt.lower():
            yield "junk the prompt itself", prompt
        yield "junk a reply of many words", ("word " if answer not in "word " else "hm ") * (rules.reply_chars // 5)
        digit = next((digit for digit in "7890123456" if digit not in answer), "")
        yield "junk a long number", rules.answer_forms[0].format(answer=9 * digit)


def spoiled(answer: str) -> tuple[str, str]:
    """Two wrong answers of the same length and look: one differs at the end, one everywhere.

    >>> spoiled("72"), spoiled("ab")
    (('77', '27'), ('ac', 'bc'))
    """
    return answer[:-1] + _other(answer[-1]), "".join(_other(letter) for letter in answer)


def _other(letter: str) -> str:
    if letter.isdigit() and letter.isascii():
        return str((int(letter) + 5) % 10)
    if letter.isalpha() and letter.isascii():
        after = chr(ord(letter) + 1)
        return after if after.isalpha() else chr(ord(letter) - 1)
    return letter


def odd(answer: str, rules: ProbeRules) -> tuple[str, ...]:
    """Replies that rewards trip over. They must survive; what they earn is not looked at."""
    form = rules.answer_forms[0]
    return (
        " ",
        "\n",
        form.format(answer=""),
        form.format(answer="9" * 5000),  # int() has a limit
        form.format(answer="\N{SUPERSCRIPT TWO}\N{ARABIC-INDIC DIGIT THREE}"),  # isdigit() without being int()
        form.format(answer="1e999"),
        form.format(answer="-"),
        form.format(answer=f"{answer} {answer}"),
        "\N{RIGHT-TO-LEFT OVERRIDE}\N{GRINNING FACE}\0",
        "<think>" + "hm " * 50,
        '{"a":[',
        "\\frac{1}{",
        "a" * 40 + "!",  # backtracking patterns
        "word " * 4000,
        ">" * 50 + "." * 50,
    )
