"""A run in which whatever an agent, its job or a machine can write tries to become part of the page."""

from attrs import evolve
from made_run import make_run

from nested_rl.report.compare import compare
from nested_rl.report.page import write_report
from nested_rl.report.transcripts import write_transcripts
from nested_rl.types import Message, Problem, ToolCall, Transcript, Turn, Validation

OWN = "document.title = 'owned'; window.owned = 1; alert('owned')"
PAYLOADS = (
    f"<script>{OWN}</script>",
    f"</code></pre></details></main></body><script>{OWN}</script>",
    f'<img src=x onerror="{OWN}"><svg onload="{OWN}"></svg>',
    f'"><svg/onload="{OWN}">',
    f'<a href="javascript:{OWN}" autofocus onfocus="{OWN}">next</a>',
    f'<iframe srcdoc="<script>parent.{OWN}</script>"></iframe>',
    "<style>body { display: none }</style><meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css><base href=http://127.0.0.1:9/>",
    "</style></title><form action=http://127.0.0.1:9/><input autofocus></form>",
    "{{ 7 * 7 }} {% include 'style.css.j2' %} &lt;script&gt; ]]> --> '\"`",
    "\x1b[31mred\x1b[0m \x1b]8;;http://127.0.0.1:9/\x07link \u202egpj.exe\u202c \u2066x\u2069 \x00\x08 \u200b\ufeff",
    "W" * 3000,
)
TEXT = "\n".join(PAYLOADS)


def make_hostile_run(path):
    """The run, its report and all its pages."""
    run = make_run(path, steps=2, groups_per_step=2, group_size=3, text=TEXT)
    for number, episode in enumerate(list(run.episodes())):
        files = {n: {"job.toml": TEXT, "environment.py": TEXT} for n in range(1, len(episode.validations) + 1)}
        run.write_episode(_poisoned(episode, PAYLOADS[number % len(PAYLOADS)]), files=files)
    write_transcripts(run, run.episodes())
    write_report(run)
    return run


def compare_hostile_runs(one, folder):
    """The page of it and another of its kind, in a folder with a name of the agent's sort."""
    return compare(one, make_hostile_run(folder / f"{PAYLOADS[3].replace('/', ' ')}")).write(folder / "both.html")


def _poisoned(episode, payload):
    calls = (
        ToolCall(name="write_file", arguments={"path": payload, "content": TEXT}),
        ToolCall(name="edit_file", arguments={"path": payload, "old": payload, "new": TEXT}),
        ToolCall(name=payload, arguments={payload: TEXT}),
        ToolCall(name="", error=TEXT),
    )
    conversation = (
        Message(role="user", content=TEXT),
        Turn(message=Message(role="assistant", content=TEXT, tool_calls=calls), stop=payload),
        Message(role="tool", content=payload, name=payload),
        Message(role="tool", content=TEXT, name=payload),
    )
    problem = Problem(code=payload, where=payload, message=TEXT, hint=payload, brief=payload[:40])
    validations = tuple(Validation(ok=v.ok, problems=() if v.ok else (problem,)) for v in episode.validations)
    result = episode.result and evolve(episode.result, log=TEXT, error=payload, machine=payload)
    return evolve(
        episode,
        transcript=Transcript(conversation=conversation, end=payload),
        validations=validations,
        result=result,
        jobs=tuple(evolve(job, result=result) for job in episode.jobs),
        outcome=evolve(episode.outcome, error=payload),
    )
