"""Plans: where their figures are from, what they say, and that nobody is asked in vain."""

import io
import json
import sys

import attrs
import pytest
from made_run import make_run
from plan_play import A40, fixed, pods, setting, told, told_pods
from rich.console import Console

import nested_rl as nrl
from nested_rl import matrix
from nested_rl.errors import SettingsError
from nested_rl.plan import Assumptions, Guess, Plan, Span, TokenPrices, assumptions, make, spends
from nested_rl.plan.missing import missing
from nested_rl.plan.past import measured
from nested_rl.plan.published import PILOT_7, published
from nested_rl.rundir import RunDir
from nested_rl.trainers import TinkerTrainer
from nested_rl.types import Budget

SCHEDULE = {"groups_per_step": 1, "group_size": 2, "eval_every": 0}


@pytest.fixture
def cloud():
    return nrl.Experiment(
        nrl.tasks.load("calc_chain"),
        trainer=TinkerTrainer("Qwen/Qwen3.6-35B-A3B"),
        inner=nrl.inner.PrimeRLTrainer(),
        compute=nrl.compute.RunpodCompute(["NVIDIA A40"], max_machines=2),
        scorer=nrl.scorers.VLLMScorer(),
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "past", steps=3, groups_per_step=2, group_size=4).path


@pytest.fixture(scope="module")
def plan():
    return make(pods(machines=2), told_pods(job_spread=0.3), budget=Budget(usd=0.01))


# ---------------------------------------------------------------- figures


@pytest.mark.parametrize("values", [(2, 1, 3), (1, 2, 1), (-1, 0, 1), (1, 2, float("inf"))])
def test_a_guess_is_ordered_and_finite(values):
    with pytest.raises(SettingsError, match="0 <= low <= mid <= high"):
        Guess(*values, unit="s", source="x")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"job_sec": 1.0}, "no assumption is called 'job_sec'"),
        ({"valid": "often"}, "assumption valid: expected a number or a Guess"),
        ({"job_s": True}, "assumption job_s"),
        ({"capacity": 3}, "assumption capacity"),
    ],
)
def test_what_cannot_be_assumed_is_refused(values, words):
    with pytest.raises(SettingsError, match=words):
        Assumptions.stated("nano").with_values(**values)


def test_numbers_stand_for_guesses_that_were_given():
    given = Assumptions.stated("full").with_values(job_s=60, usd_per_hour={A40.name: 0.5}, episode_usd=0.1, turn_s=2)
    assert given.seconds("any", "1x NVIDIA A40").mid == 60
    assert given.usd_per_hour[A40.name].at("high") == 0.5
    assert given.episode_usd.source == given.turn_s.source == "given"


def test_the_more_exact_job_time_counts():
    times = {("a", "2x NVIDIA A40"): 1, ("*", "2x NVIDIA A40"): 2, ("a", "*"): 3, ("*", "*"): 4}
    known = told(job_s={place: fixed(seconds, "s") for place, seconds in times.items()})
    asked = [("a", "2x NVIDIA A40 (secure)"), ("b", "2x NVIDIA A40 (community)"), ("a", "NVIDIA A40"), ("b", "")]
    assert [known.seconds(*one).mid for one in asked] == [1, 2, 3, 4]
    with pytest.raises(SettingsError, match="no job time for b"):
        attrs.evolve(known, job_s={("a", "*"): fixed(3, "s")}).seconds("b", "NVIDIA A40")


def test_every_stated_figure_has_a_unit_and_says_what_it_rests_on():
    for scale in ("nano", "full"):
        for name, guess in Assumptions.stated(scale).rows():
            assert guess.unit, name
            assert len(guess.source) > 10, name


# ---------------------------------------------------------------- where they are from


def test_a_past_run_tells_what_it_took(run_dir):
    known, run = measured(run_dir, Assumptions.stated("nano")), RunDir.open(run_dir)
    episodes = [e for e in run.episodes() if not e.masked]
    checked = [v for e in episodes for v in e.validations]
    assert known.seconds("nano-m", "").mid == pytest.approx(0.9)
    assert known.job_spread.mid == pytest.approx(0.0, abs=1e-9)
    assert known.update_s.mid == pytest.approx(0.5)
    assert known.valid.mid == pytest.approx(sum(v.ok for v in checked) / len(checked))
    chances = len(checked) + sum(not e.outcome.valid and len(e.validations) < 3 for e in episodes)
    assert known.tries.mid == pytest.approx(len(checked) / chances)
    assert known.tries.mid < 1
    assert known.turns.mid == pytest.approx(sum(len(e.transcript.turns) for e in episodes) / chances)
    assert known.turn_s.mid * known.turns.mid * chances == pytest.approx(0.2 * len(episodes))
    assert (
        known.prompt_tokens == Assumptions.stated("nano").prompt_tokens
    )  # the agent runs here, so nobody is paid for them
    assert known.episode_usd.mid == pytest.approx(3 * 0.005 / len(list(run.episodes())))
    assert known.boot_s == Assumptions.stated("nano").boot_s
    assert str(run_dir) in known.update_s.source


def test_pods_of_a_past_run_are_read_from_its_ledger(tmp_path):
    run = make_run(tmp_path / "r", steps=1, groups_per_step=1, group_size=2, evals=False)
    rows = [
        ("a", "provision", 40),
        ("a", "preflight", 10),
        ("a", "busy", 500),
        ("a", "drain", 5),
        ("b", "provision", 900),
    ]
    for number, (pod, kind, seconds) in enumerate(rows):
        usd = seconds / 3600 * 0.5
        run.costs_log.append({"id": f"p{number}", "kind": f"pod/{kind}", "usd": usd, "seconds": seconds, "pod": pod})
    run.close()
    known = measured(run.path, told_pods(), candidates=[A40.name])
    assert known.boot_s.mid == 40
    assert known.preflight_s.mid == 10
    assert known.boot_failure.mid == 0.5
    assert known.lost_per_hour.mid == 0
    assert known.usd_per_hour[A40.name].mid == pytest.approx(0.5)


def test_the_matrix_gives_job_times_of_its_bases_only(tmp_path, cloud):
    path = tmp_path / "matrix.json"
    row = {"candidate": "NVIDIA A40", "jobs": 4, "succeeded": 3, "measured": "2026-11-30"}
    rows = [matrix.Row(base="Qwen/Qwen3-0.6B", seconds=500.0, **row), matrix.Row(base="other", seconds=1.0, **row)]
    matrix.write(path, rows)
    plan = cloud.plan(1, **SCHEDULE, matrix=path)
    known = plan.assumptions
    assert known.seconds("Qwen/Qwen3-0.6B", "1x NVIDIA A40 (secure)").mid == 500
    assert "matrix.json, 2026-11-30, 4 jobs" in known.seconds("Qwen/Qwen3-0.6B", "1x NVIDIA A40").source
    assert known.seconds("Qwen/Qwen3-1.7B", "1x NVIDIA A40") == Assumptions.stated("full").seconds("x", "y")
    assert known.job_failure.mid == pytest.approx(0.25)


def test_prices_given_to_the_trainer_make_dollars_of_tokens():
    prices = {"prefill_usd_per_mtok": 1.0, "sample_usd_per_mtok": 2.0, "train_usd_per_mtok": 3.0, "as_of": "2026-11-01"}
    exp = nrl.Experiment(trainer=TinkerTrainer("some/model", prices=prices))
    plan = exp.plan(1, **SCHEDULE)
    tokens, usd = plan.tokens, plan.usd
    assert "2026-11-01" in plan.assumptions.token_prices.train.source
    assert usd["agent"].mid == pytest.approx(
        (tokens["agent reads"].mid + 2 * tokens["agent writes"].mid) / 1e6, rel=0.02
    )
    assert usd["training"].mid == pytest.approx(3 * tokens["training"].mid / 1e6)
    assert not any("no price" in note for note in plan.notes)


def test_tokens_without_a_price_are_counted_and_said_to_have_none():
    plan = nrl.Experiment(trainer=TinkerTrainer("some/model")).plan(1, **SCHEDULE)
    assert set(plan.usd) == {"machines"}
    assert plan.tokens["training"].mid > 0
    assert any("give the trainer prices" in note for note in plan.notes)
    assert plan.costs_money


def test_a_pod_without_a_known_price_is_not_planned_for():
    compute = nrl.compute.RunpodCompute(["NVIDIA L40"])
    with pytest.raises(SettingsError, match="no price is known of '1x NVIDIA L40"):
        nrl.Experiment(compute=compute).plan(1, **SCHEDULE)
    priced = {"usd_per_hour": {"1x NVIDIA L40 (secure)": 1.0}}
    plan = nrl.Experiment(compute=compute).plan(1, **SCHEDULE, assumptions=priced)
    assert any("1x NVIDIA L40 (community)" in note for note in plan.notes)
    assert plan.usd["machines"].mid == pytest.approx(plan.machine_hours.mid)


def test_assumptions_as_a_whole_are_taken_as_they_are():
    exp, whole = nrl.Experiment(), told()
    asked = setting()
    assert assumptions(exp, asked, given=whole, like="/nowhere") is whole


@pytest.mark.parametrize(
    ("parts", "paid"),
    [
        ({}, False),
        ({"compute": nrl.compute.LocalCompute(1, usd_per_hour=0.1)}, True),
        ({"trainer": TinkerTrainer("m")}, True),
        ({"trainer": TinkerTrainer("m", base_url="http://localhost:1")}, False),
    ],
)
def test_who_is_paid(parts, paid):
    assert spends(nrl.Experiment(**parts)) is paid


def test_keys_and_packages_that_are_missing_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RUNPOD_API_KEY", "TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    compute, trainer = nrl.compute.RunpodCompute(["NVIDIA A40"]), TinkerTrainer("m")
    names = [one.name for one in missing(trainer, compute, None) if one.name.endswith("_KEY")]
    assert names == ["TINKER_API_KEY", "RUNPOD_API_KEY"]
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_x")
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    assert not [one for one in missing(trainer, compute) if one.name.endswith("_KEY")]
    assert not list(missing(nrl.Experiment().trainer, nrl.compute.LocalCompute(1)))


@pytest.mark.parametrize(
    ("where", "environment", "told"),
    [
        ({"base_url": "http://gpu:1", "key_env": "LAB_KEY"}, {}, "set the environment variable LAB_KEY"),
        ({"base_url": "http://gpu:1"}, {"TINKER_CREDENTIAL_CMD": "x"}, "unset it for this run"),
        ({}, {"TINKER_API_KEY": "tml-x", "TINKER_BASE_URL": "http://gpu:1"}, "sends the hosted service's key"),
        ({}, {"TINKER_API_KEY": "sk-x"}, "must begin with tml-"),
    ],
)
def test_a_key_that_the_trainer_would_refuse_is_missing(monkeypatch, where, environment, told):
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL", "LAB_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    hints = [one.hint for one in missing(TinkerTrainer("m", **where)) if one.name == "TINKER_API_KEY"]
    assert [told in hint for hint in hints] == [True]


# ---------------------------------------------------------------- what a plan says


def test_a_plan_has_a_range_and_adds_up(plan):
    for span in (plan.jobs, plan.wall_clock_s, plan.machine_hours, plan.utilisation, plan.total_usd):
        assert 0 < span.low <= span.mid <= span.high
    assert plan.jobs.mid == plan.episodes == 12
    assert (plan.as_planned.wall_clock_s, plan.as_planned.usd) == (plan.wall_clock_s.mid, plan.total_usd.mid)
    assert any("budget of $0 would be reached" in note for note in plan.notes)


def test_chance_alone_leaves_a_range_where_nothing_is_a_guess():
    wall = make(setting(machines=2, steps=4), told(job_spread=0.5)).wall_clock_s
    assert wall.low < wall.high


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_whoever_waits_at_a_terminal_sees_the_simulations_counted(monkeypatch, terminal, quiet):
    told_to = io.StringIO()
    monkeypatch.setattr(told_to, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", told_to)
    monkeypatch.setenv("TERM", "xterm")
    plan = make(setting(), told(), quiet=quiet)
    said = told_to.getvalue()
    if terminal and not quiet:
        assert "simulating the run" in said
        assert f"of {3 + len(plan.what_ifs)} times" in said
    else:
        assert said == ""


@pytest.mark.parametrize(
    ("changed", "machines", "part"),
    [
        ({}, 1, "machines"),
        ({"turns": 1.0, "turn_s": 900.0}, 4, "agent"),
        ({"update_s": 900.0}, 4, "trainer"),
        ({"update_s": 0.0}, 4, "jobs"),
    ],
)
def test_what_holds_a_run_up_is_what_relieves_it(changed, machines, part):
    assert make(setting(machines=machines), told(**changed)).bottleneck == part


def test_more_steps_off_policy_relieve_a_run_that_waits_for_stragglers():
    asked = setting(machines=16, steps=12, groups_per_step=2, order="ready")
    plan = make(asked, told(job_spread=1.0, update_s=0.0))
    assert plan.bottleneck == "staleness pacing"
    by_name = {one.what: one for one in plan.what_ifs}
    assert by_name["at most 1 step off-policy"].wall_clock_s < 0.8 * plan.as_planned.wall_clock_s


def test_a_dearer_end_at_which_the_run_would_stop_is_said():
    plan = make(setting(machines=2, steps=6), told(job_failure=Guess(0.0, 0.0, 1.0, unit="share", source="x")))
    assert plan.jobs.mid == 24
    assert any("at their high end the run would stop by itself" in note for note in plan.notes)


def test_what_is_planned_with_less_than_may_come_is_said():
    exp = nrl.Experiment(harness=nrl.harness.ToolHarness(max_jobs=3))
    notes = exp.plan(1, **SCHEDULE).notes
    assert any("may hand in 3 jobs and is planned with one" in note for note in notes)


def test_json_holds_everything(plan):
    told = json.loads(json.dumps(plan.as_json()))
    assert told["usd"]["total"]["mid"] == pytest.approx(plan.total_usd.mid)
    assert told["setting"]["pods"] == [A40.name]
    assert told["assumptions"]["boot_s"]["source"] == "given"
    assert [one["what"] for one in told["what_ifs"]][:2] == ["as planned", "4 machines"]


def shown(plan):
    out = io.StringIO()
    plan.show(Console(file=out, width=80, highlight=False))
    return out.getvalue()


def test_the_published_run_is_shown_beside_the_plan_with_no_claim_of_its_own(plan):
    assert published(PILOT_7.setting) is PILOT_7
    assert published({**PILOT_7.setting, "steps": 53}) is None
    text = shown(attrs.evolve(plan, published=PILOT_7))
    for words in (
        "about $810",
        "about $465 (Tinker)",
        "about 1,750",
        "not measured here",
        "rests on",
        "Rewards are not",
    ):
        assert words in " ".join(text.split()), words
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_a_plan_names_every_assumption_and_what_is_missing(cloud, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    plan = cloud.plan(1, **SCHEDULE)
    text = " ".join(shown(plan).split())
    assert "RUNPOD_API_KEY" in text
    assert "predicts nothing" in text  # what an episode costs is of the published run itself
    for name in ("job_s[*, *]", "boot_s", "valid", "usd_per_hour[1x NVIDIA"):
        assert name in text
    assert max(len(line.rstrip()) for line in shown(plan).splitlines()) <= 80


# ---------------------------------------------------------------- asking


@pytest.fixture
def terminal(monkeypatch):
    def says(answer):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        asked = []
        monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
        return asked

    return says


@pytest.mark.parametrize(("answer", "goes_on"), [("y", True), ("Yes", True), ("", False), ("n", False), ("$", False)])
def test_who_sits_there_is_asked(plan, terminal, answer, goes_on):
    asked = terminal(answer)
    assert plan.ask() is goes_on
    assert "12 jobs in about" in asked[0]
    assert "$" in asked[0]


def test_nobody_is_asked_where_nobody_sits(plan, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(SettingsError, match="nobody can be asked") as told:
        plan.ask()
    assert told.value.exit_code == 2
    assert plan.ask(yes=True)


def test_what_costs_nothing_is_not_asked_for(terminal):
    asked = terminal("n")
    plan = make(setting(), told())
    assert not plan.costs_money
    assert plan.ask()
    assert not asked


def test_a_span_takes_the_middle():
    assert Span.around([3.0, 1.0, 2.0]) == Span(1.0, 2.0, 3.0)
    assert isinstance(make(setting(), told()), Plan)
    assert TokenPrices(prefill=fixed(1), sample=fixed(2), train=fixed(3)).sample.mid == 2
