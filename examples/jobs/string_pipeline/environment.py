"""Words that go through a few transformations. A word that is nearly right earns a little: single slips are what is left to mend."""

END = "Reply with the resulting word alone on the last line."
WORDS = (
    (
        'Take the word "{start}". {steps} Which word do you have now?',
        {
            "R": "Reverse it.",
            "L": "Move its first letter to the end.",
            "X": "Swap its first and last letters.",
            "N": "Replace every letter by the next one in the alphabet (z becomes a).",
            "D": "Double its last letter.",
            "V": "Remove its vowels (a, e, i, o, u).",
        },
    ),
    (
        "Apply these operations in order to {start}: {steps} done. What comes out?",
        {
            "R": "reverse;",
            "L": "rotate left by one;",
            "X": "exchange first and last letter;",
            "N": "shift every letter forward by one (z to a);",
            "D": "write the last letter twice;",
            "V": "drop the vowels a, e, i, o, u;",
        },
    ),
    (
        "{start} goes through a pipeline: {steps} output. What is the output?",
        {
            "R": "mirror ->",
            "L": "first letter to the back ->",
            "X": "swap both ends ->",
            "N": "next letter of the alphabet for each (z wraps to a) ->",
            "D": "double the last letter ->",
            "V": "delete a, e, i, o and u ->",
        },
    ),
)
FIRST, LETTERS = "bcdfghklmnprst", "abcdefghiklmnoprstuz"


def examples(rng, n):
    return [question(rng, rng.choice((2, 3, 3, 4))) for _ in range(n)]


def question(rng, k):
    frame, words = rng.choice(WORDS)
    start = rng.choice(FIRST) + "".join(rng.choice(LETTERS) for _ in range(rng.randint(4, 6)))
    ops = [rng.choice("RLXND") for _ in range(k)]
    if rng.random() < 0.5:
        ops[rng.randrange(k)] = "V"
    word = start
    for op in ops:
        word = apply(op, word)
    text = frame.format(start=start, steps=" ".join(words[op] for op in ops))
    return {"prompt": f"{text} {END}", "answer": word}


def apply(op, word):
    if op == "R":
        return word[::-1]
    if op == "L":
        return word[1:] + word[:1]
    if op == "X":
        return word[-1] + word[1:-1] + word[0] if len(word) > 1 else word
    if op == "D":
        return word + word[-1:]
    if op == "V":
        return "".join(letter for letter in word if letter not in "aeiou")
    return "".join("a" if letter == "z" else chr(ord(letter) + 1) for letter in word)


def reward(prompt, completion, answer):
    lines = [line for line in completion.splitlines() if line.strip()]
    last = lines[-1].strip(" .*`\"'").lower() if lines else ""
    if last == answer:
        return 1.0
    if len(last) != len(answer):
        return 0.0
    return 0.2 * sum(a == b for a, b in zip(last, answer)) / len(answer)
