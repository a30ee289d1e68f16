"""Three accounts and a few entries: what does one of them hold in the end?"""

import re

NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gwen Hugo Iris Jack Kira Liam Mona Nils Olga Pete Rosa Sven Tara Uma Vera Will Yann Zoe"
).split()
END = "Reply with the number alone on the last line."
WORDS = (
    (
        "{accounts} {steps} How many coins does {ask} have now?",
        "{name} has {x} coins.",
        {"+": "{a} earns {x}.", "-": "{a} spends {x}.", "t": "{a} pays {x} to {b}."},
    ),
    (
        "Opening balances: {accounts} Entries: {steps} Closing balance of {ask}?",
        "{name} {x};",
        {"+": "deposit {x} to {a};", "-": "withdrawal {x} from {a};", "t": "transfer {x} from {a} to {b};"},
    ),
    (
        "In the book, {accounts} then {steps} and the day ends. What does the account of {ask} hold?",
        "{name} holds {x},",
        {"+": "{a} gains {x},", "-": "{a} loses {x},", "t": "{x} moves from {a} to {b},"},
    ),
)


def examples(rng, n):
    return [question(rng, rng.choice((3, 4, 4, 5))) for _ in range(n)]


def question(rng, k):
    frame, account, words = rng.choice(WORDS)
    names = rng.sample(NAMES, 3)
    held = {name: rng.randint(100, 999) for name in names}
    accounts = " ".join(account.format(name=name, x=x) for name, x in held.items())
    steps = []
    for _ in range(k):
        kind, x = rng.choice("+-tt"), rng.randint(11, 99)
        a, b = rng.sample(names, 2)
        held[a] += x if kind == "+" else -x
        if kind == "t":
            held[b] += x
        steps.append(words[kind].format(a=a, b=b, x=x))
    ask = rng.choice(names)
    text = frame.format(accounts=accounts, steps=" ".join(steps), ask=ask)
    return {"prompt": f"{text} {END}", "answer": str(held[ask])}


def reward(prompt, completion, answer):
    lines = [line for line in completion.splitlines() if line.strip()]
    last = lines[-1].replace(",", "").replace("\N{MINUS SIGN}", "-").strip(" .*`$") if lines else ""
    if last == answer:
        return 1.0
    return 0.1 if re.fullmatch(r"-?[0-9]{1,12}", last) else 0.0
