"""Readings against limits: how many reach theirs is the severity, and the severity says which team is called."""

SERVICES = "checkout search login billing gateway catalog mailer ledger profile uploads".split()
SIGNALS = "errors latency retries timeouts restarts queue memory disk".split()
TEAMS = "network storage platform payments identity frontend data security".split()
END = "Reply with the severity and the team alone on the last line, like: 2 storage"
WORDS = (
    (
        "Triage rules for {service}: {limits} {teams} Severity is the number of signals at or over their limit. "
        "Incident: {readings} What are its severity and team?",
        "{signal} has limit {x}.",
        "Severity {n} goes to {team}.",
        "{signal} reads {x}.",
    ),
    (
        "An incident hits {service}. {readings} Count the readings that reach their limit: {limits} that count is the "
        "severity. On call: {teams} State severity and team.",
        "{signal} {x},",
        "{team} for {n};",
        "{signal} is at {x}.",
    ),
    (
        "Service: {service}. Limits: {limits} Readings: {readings} One point for each reading not below its limit. "
        "Teams by points: {teams} Give the points and the team.",
        "{signal}={x};",
        "{n}={team};",
        "{signal}={x};",
    ),
)


def examples(rng, n):
    return [question(rng, rng.choice((3, 4, 4, 5))) for _ in range(n)]


def question(rng, k):
    frame, limit, team, reading = rng.choice(WORDS)
    signals = rng.sample(SIGNALS, k)
    limits = {signal: rng.randint(20, 80) for signal in signals}
    # Close to the limit, and often on it: that is where a reading is judged wrongly.
    readings = {signal: max(0, x + rng.choice((-15, -7, -1, 0, 0, 1, 6, 14))) for signal, x in limits.items()}
    teams = [rng.choice(TEAMS) for _ in range(k + 1)]
    severity = sum(readings[signal] >= limits[signal] for signal in signals)
    text = frame.format(
        service=rng.choice(SERVICES),
        limits=" ".join(limit.format(signal=signal, x=x) for signal, x in limits.items()),
        teams=" ".join(team.format(n=number, team=name) for number, name in enumerate(teams)),
        readings=" ".join(reading.format(signal=signal, x=x) for signal, x in readings.items()),
    )
    return {"prompt": f"{text} {END}", "answer": f"{severity} {teams[severity]}"}


def reward(prompt, completion, answer):
    lines = [line for line in completion.splitlines() if line.strip()]
    words = lines[-1].replace(",", " ").strip(" .*`").lower().split() if lines else []
    if words == answer.split():
        return 1.0
    if len(words) != 2 or words[1] not in TEAMS:
        return 0.0
    return 0.3 if words[0] == answer.split()[0] else 0.05
