"""Tables of six desks and pairs of numbers: which desk does it end at? Numbers are close together more often than by chance."""

DESKS = (
    "Amber Birch Cedar Delta Ember Flint Grove Haven Ivory Jade Kelp Lotus Maple North Onyx Pearl Quartz Ridge Slate Topaz"
).split()
END = "Reply with the name of the desk alone on the last line."
WORDS = (
    (
        "Routing table: {routes} A parcel starts at {start}. {steps} At which desk does it end?",
        "From {a} go to {b} if the first number is smaller, otherwise to {c}.",
        "The next two numbers are {x} and {y}.",
    ),
    (
        "Desks pass a file on by comparing two numbers, left and right. {routes} The file is at {start}. {steps} "
        "Where is it now?",
        "{a}: left below right, {b}; else {c}.",
        "Compare {x} with {y}.",
    ),
    (
        "Rules: {routes} end of rules. Start at {start} and read the pairs {steps} in order. Which desk do you reach?",
        "{a} -> {b} when first < second, {a} -> {c} when not;",
        "({x}, {y})",
    ),
)


def examples(rng, n):
    return [question(rng, rng.choice((3, 4, 4, 5))) for _ in range(n)]


def question(rng, k):
    frame, row, pair = rng.choice(WORDS)
    desks = rng.sample(DESKS, 6)
    table = {desk: rng.sample([other for other in desks if other != desk], 2) for desk in desks}
    start = here = rng.choice(desks)
    steps = []
    for _ in range(k):
        x = rng.randint(0, 999)
        y = x if rng.random() < 0.1 else rng.randint(0, 999)
        here = table[here][0 if x < y else 1]
        steps.append(pair.format(x=x, y=y))
    routes = " ".join(row.format(a=desk, b=b, c=c) for desk, (b, c) in table.items())
    text = frame.format(routes=routes, start=start, steps=" ".join(steps))
    return {"prompt": f"{text} {END}", "answer": here}


def reward(prompt, completion, answer):
    lines = [line for line in completion.splitlines() if line.strip()]
    last = lines[-1].strip(" .*`").title() if lines else ""
    if last == answer:
        return 1.0
    return 0.05 if last in DESKS and last in prompt else 0.0
