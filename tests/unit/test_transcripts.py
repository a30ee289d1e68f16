"""Pages of episodes: complete, inert, linked to their neighbours, and written only when asked for."""

import json
import random

import pytest
from attrs import evolve
from made_run import made_episode, made_eval, make_run
from test_report import HOSTILE, Page

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.report import close_ups, talk
from nested_rl.report.transcripts import render, select, write_transcripts
from nested_rl.rundir import RunDir
from nested_rl.types import Message, Score, ToolCall, Transcript, Turn, Usage


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "pilot", steps=3, groups_per_step=2, group_size=4)


@pytest.fixture
def fresh(tmp_path):
    return make_run(tmp_path / "pilot", steps=1, groups_per_step=2, group_size=3, evals=False)


def scored(run):
    return next(e for e in run.episodes() if e.outcome.post and e.outcome.attempts > 1)


def said(episode, *conversation):
    return evolve(episode, transcript=Transcript(conversation=conversation, end="submitted"))


def test_a_page_has_all_of_an_episode(run):
    episode = scored(run)
    page = Page(render(run, episode))
    folder = run.episode_dir(episode.group, episode.member)
    for attempt in sorted((folder / "attempts").iterdir()):
        for file in (attempt / "files").iterdir():
            assert " ".join(file.read_text().split()) in page.text
        for problem in json.loads((attempt / "validation.json").read_text())["problems"]:
            assert problem["message"] in page.text
            assert problem["hint"] in page.text
    for message in episode.transcript.conversation:
        content = message.message.content if isinstance(message, Turn) else message.content
        assert content in page.text
    assert episode.result.log in page.text
    assert f"{episode.reward:.3f}" in page.text
    assert f"{episode.outcome.post.value:.3f}" in page.text
    assert all(base in page.text for base in episode.outcome.baselines)
    assert len(page.ids) == len(set(page.ids))


def test_what_a_diff_has_said_already_is_folded(run):
    text = render(run, scored(run))
    first, second = text.split("<summary>Attempt 1 ")[1].split("<summary>Attempt 2 ")[:2]
    assert "in full</summary>" not in first
    changes, files = second.split("<details><summary>Every file of attempt 2, in full</summary>")
    assert "What changed since attempt 1" in changes
    assert '<p class="file"><code>job.toml</code>' not in changes
    assert '<p class="file"><code>job.toml</code>' in files


def test_a_page_says_which_step_of_the_files_it_means(run):
    done = list(run.events("step.done"))[1]
    episode = run.read_episode(done["groups"][0], 0)
    assert done["step"] == 1
    assert "trained on in step 2 (<code>step</code> 1 in the files)" in render(run, episode)


def test_a_page_loads_nothing_and_runs_nothing(run):
    page = Page(render(run, scored(run)))
    assert not {"script", "iframe", "object", "embed", "form", "img"} & set(page.tags)
    assert not page.events
    assert all(link.startswith(("#", "../", "data:,")) for link in page.links if not link[0].isdigit())


def test_whatever_an_agent_writes_stays_text(tmp_path):
    run = RunDir.create(tmp_path / "run", {"steps": 1})
    episode, _ = made_episode(
        random.Random(3), group=0, member=0, family="dispatch", version=0, skill=1.0, text=HOSTILE
    )
    wrote = ToolCall(name="write_file", arguments={"path": HOSTILE, "content": HOSTILE})
    changed = ToolCall(name="edit_file", arguments={"path": HOSTILE, "old": "x", "new": HOSTILE})
    odd = ToolCall(name=HOSTILE, arguments={HOSTILE: HOSTILE})
    calls = (wrote, changed, odd, ToolCall(name="", error=HOSTILE))
    agent = Turn(message=Message(role="assistant", content=HOSTILE, tool_calls=calls), stop=HOSTILE)
    episode = said(
        episode, Message(role="user", content=HOSTILE), agent, Message(role="tool", content=HOSTILE, name=HOSTILE)
    )
    result = evolve(episode.result, log=HOSTILE, error=HOSTILE, machine=HOSTILE)
    episode = evolve(episode, result=result, parts={HOSTILE: 1.0}, outcome=evolve(episode.outcome, error=HOSTILE))
    run.write_episode(episode, files={})
    run.close()
    (path,) = write_transcripts(run, [episode])
    text = path.read_text()
    page = Page(text)
    assert not {"script", "img"} & set(page.tags)
    assert not page.events
    assert not any("javascript" in link for link in page.links)
    assert page.tags.count("style") == 1
    assert page.text.count("{{ 7 * 7 }}") >= 8
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "⟨U+202E⟩" in page.text
    assert page.text.count("<script>alert(1)</script>") >= 8


def test_secrets_do_not_get_into_a_page(run, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery-9")
    key = "correct-horse-battery-9"
    wrote = ToolCall(name="write_file", arguments={"path": "job.toml", "content": f"x = '{key}'"})
    changed = ToolCall(name="edit_file", arguments={"path": "job.toml", "old": key, "new": "y"})
    agent = Turn(message=Message(role="assistant", content=key, tool_calls=(wrote, changed)))
    text = render(run, said(scored(run), agent, Message(role="tool", content="a" * talk.MOST_CHARACTERS + key)))
    assert key not in text
    assert text.count("[redacted]") >= 3


def test_neighbours_link_to_each_other_in_the_runs_order(fresh):
    write_transcripts(fresh, ["00000-0", "00001-2"])
    folder = fresh.path / "transcripts"
    assert 'rel="next" href="00001-2.html"' in (folder / "00000-0.html").read_text()
    (middle,) = write_transcripts(fresh, ["0-2"])
    assert 'rel="next" href="00000-2.html"' in (folder / "00000-0.html").read_text()
    assert 'rel="prev" href="00000-0.html"' in middle.read_text()
    assert 'rel="prev" href="00000-2.html"' in (folder / "00001-2.html").read_text()
    assert 'rel="next"' not in (folder / "00001-2.html").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["00000-0.html", "00000-2.html", "00001-2.html"]


def test_every_link_of_a_page_leads_somewhere(fresh):
    for path in write_transcripts(fresh, fresh.episodes()):
        for link in Page(path.read_text()).links:
            if link != "../report.html" and not link.startswith(("#", "data:")):
                assert (path.parent / link).exists(), link


def test_episodes_are_asked_for_by_group_member_or_all(fresh):
    assert select(fresh, ["1"]) == ["00001-0", "00001-1", "00001-2"]
    assert select(fresh, ["1-2", "00000-1", "1-2"]) == ["00000-1", "00001-2"]
    assert len(select(fresh, ["all"])) == 6


@pytest.mark.parametrize("word", ["7", "1-9", "best", "-1", ""])
def test_a_word_that_means_no_episode_is_refused(fresh, word):
    with pytest.raises(SettingsError, match="the last one is 00001-2"):
        select(fresh, [word])


def test_a_page_of_an_episode_that_is_not_there_is_refused(fresh):
    with pytest.raises(SettingsError, match="no finished episode 00009-0"):
        write_transcripts(fresh, ["9-0"])
    assert not list(fresh.path.glob("transcripts/*.html"))


def test_a_masked_episode_says_so_and_its_reward_counts_nowhere(run):
    episode = evolve(scored(run), masked=True)
    assert "masked" in Page(render(run, episode)).text


def test_the_parts_add_up_to_the_reward_where_the_weights_are_known(run):
    episode = scored(run)
    parts = close_ups.parts(episode, close_ups.weights(run.spec))
    assert sum(part.adds for part in parts) == pytest.approx(episode.reward)
    other = close_ups.parts(evolve(episode, reward=0.123), close_ups.weights(run.spec))
    assert [part.adds for part in other] == [None] * 3
    assert close_ups.weights({"parts": {"reward": {"name": "mine.thrifty"}}}) == {}


def test_items_are_compared_one_by_one(run):
    episode = scored(run)
    items = close_ups.items(episode)
    post, best = episode.outcome.post.items, episode.outcome.best_baseline.items
    assert items.gained == sum(a > b for a, b in zip(post, best, strict=True))
    assert items.gained + items.lost + items.same == len(post)
    unpaired = evolve(episode.outcome.post, items=post[:-1])
    assert close_ups.items(evolve(episode, outcome=evolve(episode.outcome, post=unpaired))) is None


def test_what_was_sampled_is_counted(run):
    turn = Turn(message=Message(role="assistant", content="hm"), ids=(1, 2), logprobs=(-1.0, -2.0), stop="length")
    priced = Turn(message=Message(role="assistant"), usage=Usage(completion_tokens=9, usd=0.01))
    page = Page(render(run, said(scored(run), turn, priced)))
    assert "agent · turn 1 · 2 tokens · mean log-probability −1.50 · cut off at its length limit" in page.text
    assert "agent · turn 2 · 9 tokens · $0.0100" in page.text


def test_long_texts_are_cut_and_say_so(run):
    turn = Turn(message=Message(role="assistant", content="a" * (talk.MOST_CHARACTERS + 1234)))
    text = render(run, said(scored(run), turn))
    assert "1,234 more characters" in text
    assert len(text) < 3 * talk.MOST_CHARACTERS


def test_the_end_of_a_long_log_is_shown(run):
    episode = scored(run)
    result = evolve(episode.result, log="begin" + "x" * close_ups.MOST_LOG + "the end")
    (job,) = close_ups.jobs(evolve(episode, jobs=(evolve(episode.jobs[0], result=result),)))
    assert job.log.endswith("the end")
    assert "begin" not in job.log
    assert job.log_cut == len("begin" + "the end")


def test_episodes_of_an_evaluation_have_pages_too(fresh):
    episode, files = made_episode(random.Random(0), group=7, member=0, family="triage", version=0, skill=1.0)
    fresh.write_episode(episode, files=files, under="evals/triage-best/episodes")
    made_eval(fresh, "triage-best", "RUN@best", 0, "test", 0.9)
    assert select(fresh, ["triage-best/all", "0-1"]) == ["00000-1", "triage-best/00007-0"]
    own, path = write_transcripts(fresh, ["00000-1", "triage-best/7-0"])
    assert path == fresh.path / "transcripts" / "triage-best" / "00007-0.html"
    page = Page(path.read_text())
    assert "evaluation triage-best" in page.text
    assert " ".join(files[1]["environment.py"].split()) in page.text
    assert "trained on in step" not in page.text
    assert 'rel="next"' not in own.read_text()
    for link in page.links:
        if not link.startswith(("#", "data:")):
            assert (path.parent / link).resolve().is_relative_to(fresh.path)
            assert link == "../../report.html" or (path.parent / link).exists()
    assert select(fresh, ["triage-*/all"]) == select(fresh, ["*/7"]) == ["triage-best/00007-0"]
    with pytest.raises(UnknownName, match="unknown evaluation 'dispatch-"):
        select(fresh, ["dispatch-*/all"])
    with pytest.raises(UnknownName, match="did you mean 'triage-best'"):
        select(fresh, ["triage-bst/7-0"])
    with pytest.raises(UnknownName):
        select(fresh, ["../episodes/0-0"])
    with pytest.raises(SettingsError, match="not the name"):
        write_transcripts(fresh, ["../0-0"])
    with pytest.raises(SettingsError, match="a slash: triage-best"):
        select(fresh, ["triage-best/9"])


def test_members_without_a_page_are_told_and_how_to_write_them(fresh):
    (path,) = write_transcripts(fresh, ["1-1"])
    assert "nested-rl report RUN --transcripts 1" in Page(path.read_text()).text
    write_transcripts(fresh, select(fresh, ["1"]))
    assert "--transcripts" not in Page(path.read_text()).text


def test_a_neighbour_that_cannot_be_read_any_more_hinders_nobody(fresh):
    write_transcripts(fresh, ["0-0"])
    (fresh.path / "episodes" / "00000-0" / "reward.json").unlink()
    (path,) = write_transcripts(fresh, ["0-1"])
    assert path.exists()


def test_of_several_jobs_each_is_shown_and_the_sealed_score_is_not(run):
    episode = scored(run)
    (job,) = episode.jobs
    sealed = evolve(
        job, attempt=1, chosen=False, result=evolve(job.result, post=None, dev=Score.of([1.0, 0.0]), log="sealed")
    )
    page = Page(render(run, evolve(episode, jobs=(sealed, job))))
    assert "Job 1, of attempt 1" in page.text
    assert "dev score 0.50 · its hidden score stays sealed" in page.text
    assert f"Job 2, of attempt {job.attempt}, the one that counts" in page.text
