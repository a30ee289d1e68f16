"""Answers checked by a second, independent solver that knows nothing of the families' own code."""

import random
import re

import pytest

from nested_rl import tasks
from nested_rl.wordings import Wording


def calc(text):
    start, *rest = re.findall(r"\d+", text)
    ops = re.findall(
        r"Add|raised|\+|Subtract|lowered|-|Multiply|multiplied|\*", text.split("precedence")[-1].split("Reply")[0]
    )
    value = int(start)
    for op, x in zip(ops, map(int, rest), strict=True):
        value = (
            value + x
            if op in {"Add", "raised", "+"}
            else value - x
            if op in {"Subtract", "lowered", "-"}
            else value * x
        )
    return str(value)


def hop(text):
    facts = {(r, p): q for p, r, q in re.findall(r"(\w+)'s (\w+) is (\w+)\.", text)}
    facts |= {(r, p): q for r, p, q in re.findall(r"The (\w+) of (\w+) is (\w+)\.", text)}
    facts |= {(r, p): q for p, r, q in re.findall(r"(\w+), (\w+): (\w+);", text)}
    chain = re.search(r"((?:the \w+ of )+)(\w+)[?.] Reply", text)
    person = chain[2]
    for relation in reversed(re.findall(r"the (\w+) of", chain[1])):
        person = facts[relation, person]
    return person


STRING = {
    "R": r"Reverse it|reverse;|mirror", "L": r"Move its first|rotate left|first letter to the back",
    "X": r"Swap its|exchange|swap both", "N": r"Replace every|shift every|next letter of",
    "D": r"Double|write the last letter twice|double the last", "V": r"Remove|drop|delete",
}  # fmt: skip


def string(text):
    word = list(re.search(r'word "(\w+)"|to (\w+):|^(\w+) goes', text).group(1, 2, 3))
    word = next(w for w in word if w)
    pattern = "|".join(f"(?P<{op}>{p})" for op, p in STRING.items())
    for found in re.finditer(pattern, text):
        op = found.lastgroup
        if op == "R":
            word = "".join(reversed(word))
        elif op == "L":
            word = word[1:] + word[0]
        elif op == "X":
            word = word if len(word) < 2 else word[-1] + word[1:-1] + word[0]
        elif op == "N":
            word = word.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza"))
        elif op == "D":
            word += word[-1]
        else:
            word = re.sub("[aeiou]", "", word)
    return word


def ledger(text):
    books = {
        n: int(x)
        for n, x in re.findall(r"(\w+) (?:has |holds )?(\d+)(?: coins\.|;|,)", text.split("Entries:")[0])
        if n[0].isupper()
    }
    moves = r"(?P<a>\w+) (?P<in>earns|gains) (\d+)|(?P<b>\w+) (?P<out>spends|loses) (\d+)|(\w+) pays (\d+) to (\w+)|deposit (\d+) to (\w+)|withdrawal (\d+) from (\w+)|transfer (\d+) from (\w+) to (\w+)|(\d+) moves from (\w+) to (\w+)"
    for m in re.finditer(moves, text):
        g = m.groups()
        if m["in"]:
            books[m["a"]] += int(g[2])
        elif m["out"]:
            books[m["b"]] -= int(g[5])
        elif "pays" in m[0]:
            books[g[6]] -= int(g[7])
            books[g[8]] += int(g[7])
        elif "deposit" in m[0]:
            books[g[10]] += int(g[9])
        elif "withdrawal" in m[0]:
            books[g[12]] -= int(g[11])
        else:
            x, a, b = [v for v in g if v]
            books[a] -= int(x)
            books[b] += int(x)
    return str(books[re.search(r"(?:coins does|balance of|account of) (\w+)", text)[1]])


def dispatch(text):
    rows = re.findall(
        r"From (\w+) go to (\w+) if .*? otherwise to (\w+)\.|(\w+): left below right, (\w+); else (\w+)\.|(\w+) -> (\w+) when .*? -> (\w+) when not",
        text,
    )
    table = {a: (b, c) for a, b, c in ([v for v in row if v] for row in rows)}
    desk = re.search(r"(?:starts at|file is at|Start at) (\w+)", text)[1]
    for found in re.finditer(r"numbers are (\d+) and (\d+)|Compare (\d+) with (\d+)|\((\d+), (\d+)\)", text):
        x, y = (int(v) for v in found.groups() if v)
        desk = table[desk][0] if x < y else table[desk][1]
    return desk


def triage(text):
    limits = dict(re.findall(r"(\w+) has limit (\d+)", text) or re.findall(r"(\w+) (\d+),", text))
    readings = dict(re.findall(r"(\w+) (?:reads|is at) (\d+)", text))
    teams = dict(
        re.findall(r"Severity (\d+) goes to (\w+)", text) or [(n, t) for t, n in re.findall(r"(\w+) for (\d+);", text)]
    )
    if "Limits:" in text:
        part = re.search(r"Limits:(.*)Readings:(.*)One point.*points:(.*)Give", text)
        limits, readings, teams = (dict(re.findall(r"(\w+)=(\w+);", p)) for p in part.groups())
    severity = sum(int(readings[s]) >= int(limits[s]) for s in limits)
    return f"{severity} {teams[str(severity)]}"


SOLVERS = {
    "calc_chain": calc,
    "multi_hop": hop,
    "string_pipeline": string,
    "ledger": ledger,
    "dispatch": dispatch,
    "triage": triage,
}


@pytest.mark.parametrize("name", SOLVERS)
def test_full_scale_answers(name):
    (family,) = tasks.load(name)
    items = family.examples(random.Random(11), 400, family.card.level.k)
    assert len({item.answer for item in items}) > 8
    for item in items:
        assert SOLVERS[name](item.prompt) == item.answer, item


def nano_calc(p):
    v = int(p[1])
    for op, x in re.findall(r"(.)(\d)", p[2:-1]):
        v = eval(f"{v}{op}{x}") % 10
    return str(v)


def nano_string(p):
    w = p[1:5]
    for op in p[5:-1]:
        w = {
            "R": w[::-1],
            "L": w[1:] + w[0],
            "X": w[3] + w[1:3] + w[0],
            "N": w.translate(str.maketrans("abcdefgh", "bcdefgha")),
        }[op]
    return w


def nano_ledger(p):
    a, b = int(p[2]), int(p[3])
    for op, x in re.findall(r"(.)(\d)", p[4:-1]):
        a, b = a + {"a": 1, "b": 0, "t": -1}[op] * int(x), b + {"a": 0, "b": 1, "t": 1}[op] * int(x)
    return str((a if p[1] == "a" else b) % 10)


@pytest.mark.parametrize(
    ("name", "solve"), [("calc_chain", nano_calc), ("string_pipeline", nano_string), ("ledger", nano_ledger)]
)
def test_nano_answers(name, solve):
    (family,) = tasks.load(name, scale="nano")
    for item in family.examples(random.Random(11), 500, (1, 3)):
        assert solve(item.prompt) == item.answer, item


@pytest.mark.parametrize("name", ["multi_hop", "dispatch", "triage"])
def test_the_fixed_nano_worlds_agree_with_their_one_step_questions(name):
    (family,) = tasks.load(name, scale="nano")

    def solve(question):
        return family.solve(family.read(question))

    for item in family.examples(random.Random(2), 300, 2):
        body = item.prompt[:-1]
        if name == "triage":  # severities add up over readings
            first, second = (int(solve(q)[0]) for q in (body[:4], body))
            assert second - first in {0, 1}
            continue
        half = 1 if name == "multi_hop" else 2
        middle = solve(body[: 2 + half])
        assert solve(body[0] + middle + body[2 + half :]) == item.answer


WORKING = {
    "calc_chain": ("c8-1+5+4?", "72>6"), "string_pipeline": ("sabcdRN?", "dcba>edcb"), "ledger": ("lb03t1b3?", "9497>7"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKING)
def test_nano_working_is_spelled_as_documented(name):
    (family,) = tasks.load(name, scale="nano")
    prompt, text = WORKING[name]
    assert family.working(family.read(prompt), "clean", random.Random(0)) == text
    assert family.working(family.read(prompt), "direct", random.Random(0)) == text[text.index(">") :]


def test_noise_garbles_working_at_its_rate():
    for family in tasks.load(scale="nano"):
        rng = random.Random(0)
        programs = [family.sample(rng, family.difficulty) for _ in range(300)]
        clean = [family.working(p, "clean", rng) for p in programs]
        assert [family.working(p, "noisy", rng, rate=0.0) for p in programs] == clean
        changed = sum(family.working(p, "noisy", rng, rate=0.3) != c for p, c in zip(programs, clean, strict=True))
        assert 0.3 < changed / 300 < 0.95
        assert all(len(family.working(p, "lazy", rng)) <= 5 for p in programs)


def test_a_wording_reads_only_what_it_could_have_written():
    sums = Wording("Start with {start}. {steps} Result?", {"steps": {"+": "Add {x}.", "-": "Take {x}."}})
    assert sums.read("so: START WITH 4.  add 3. Result? thanks") == ({"start": "4"}, {"steps": [("+", {"x": "3"})]})
    for text in (
        "Start with 4. Result?",
        "Start with 4. Add. Result?",
        "Start with 4. Add 3. Fly 2. Result?",
        "",
        "x" * 9000,
    ):
        assert sums.read(text) is None
