"""A small world of people and relations, new in every question: whom does a chain of relations lead to?"""

NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gwen Hugo Iris Jack Kira Liam Mona Nils Olga Pete Quinn Rosa Sven Tara Uma Vera Will Xena "
    "Yann Zoe Alma Boris Cora Dora Emil Freya Gus Hana Igor Jude"
).split()
RELATIONS = "mentor neighbour manager doctor landlord coach tutor cousin".split()
END = "Reply with the name alone on the last line."
WORDS = (
    ("Facts: {facts} Question: who is {steps} {start}?", "{a}'s {relation} is {b}."),
    ("Here is what is known. {facts} Name {steps} {start}.", "The {relation} of {a} is {b}."),
    ("Address book: {facts} End of the address book. Find {steps} {start}.", "{a}, {relation}: {b};"),
)


def examples(rng, n):
    return [question(rng, rng.choice((2, 3, 3, 4))) for _ in range(n)]


def question(rng, k):
    frame, fact = rng.choice(WORDS)
    people, relations = rng.sample(NAMES, 6 + k), rng.sample(RELATIONS, 4)
    world = {}
    for relation in relations:
        for a, b in zip(people, rng.sample(people, len(people))):
            world[relation, a] = b
    start = here = rng.choice(people)
    hops = [rng.choice(relations) for _ in range(k)]
    shown = {}
    for relation in hops:
        shown[relation, here] = world[relation, here]
        here = world[relation, here]
    for key in rng.sample(sorted(key for key in world if key not in shown), 12):
        shown[key] = world[key]
    lines = [fact.format(a=a, relation=relation, b=b) for (relation, a), b in shown.items()]
    rng.shuffle(lines)
    steps = " ".join(f"the {relation} of" for relation in reversed(hops))
    text = frame.format(facts=" ".join(lines), steps=steps, start=start)
    return {"prompt": f"{text} {END}", "answer": here}


def reward(prompt, completion, answer):
    lines = [line for line in completion.splitlines() if line.strip()]
    last = lines[-1].strip(" .*`").title() if lines else ""
    if last == answer:
        return 1.0
    return 0.05 if last in NAMES and last in prompt else 0.0
