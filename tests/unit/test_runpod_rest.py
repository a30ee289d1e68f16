"""The REST provider against a strict fake of the API: what is sent, what is read, and what each failure is taken for."""

import sys
from pathlib import Path

import httpx
import pytest

from nested_rl.clock import VirtualClock
from nested_rl.compute.provider import (
    Candidate,
    Gone,
    NoCapacity,
    Order,
    OutOfMoney,
    ProviderError,
    Refused,
    Rejected,
    Throttled,
    Unknown,
    Wrong,
)
from nested_rl.compute.runpod_rest import PER_MINUTE, RunpodRest, api_key
from nested_rl.errors import SettingsError

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from fake_runpod import KEY, FakeRunpod, transport

A5000 = Candidate(gpu="NVIDIA RTX A5000", gpus=2, cloud="community", gpu_memory_gib=24)
ORDER = Order(
    name="nrl-run-0-abc", candidate=A5000, image="image:tag", env={"PUBLIC_KEY": "ssh-ed25519 AAAA"}, args="bash -c 'x'"
)


class Account:
    """A provider and the server it talks to, on one virtual clock."""

    def __init__(self, *, key=KEY):
        self.clock = VirtualClock(start=1_790_000_000.0)
        self.fake = FakeRunpod(self.clock.now)
        self.provider = RunpodRest(key=key, clock=self.clock, transport=transport(self.fake))

    def ask(self, work):
        return self.clock.run(work)


@pytest.fixture
async def account():
    account = Account()
    yield account
    await account.provider.close()


async def test_a_pod_is_made_seen_and_ended(account):
    pod = await account.ask(account.provider.create(ORDER))
    assert (pod.name, pod.status, pod.usd_per_hour, pod.ssh) == ("nrl-run-0-abc", "provisioning", 0.32, None)
    _, _, sent = account.fake.requests[-1]
    assert sent["gpu"] == {"id": "NVIDIA RTX A5000", "count": 2, "minCudaVersion": "12.8"}
    assert (sent["cloud"], sent["ports"], sent["args"]) == ("COMMUNITY", ["22/tcp"], "bash -c 'x'")
    (seen,) = await account.ask(account.provider.list())
    assert (seen.id, seen.status, seen.ssh, seen.gpus) == (pod.id, "running", ("127.0.0.1", 22), 2)
    assert (seen.created_at, seen.cloud) == (1_790_000_000.0, "community")
    await account.ask(account.provider.terminate(pod.id))
    await account.ask(account.provider.terminate(pod.id))
    with pytest.raises(Gone):
        await account.ask(account.provider.get(pod.id))


@pytest.mark.parametrize(
    ("fault", "kind", "made"),
    [
        ("nocap", NoCapacity, 0),
        (400, Rejected, 0),
        (401, Wrong, 0),
        (402, OutOfMoney, 0),
        (403, Refused, 0),
        (409, ProviderError, 0),
        (422, Wrong, 0),
        (429, Throttled, 0),
        (500, Unknown, 0),
        (502, Unknown, 0),
        ("hang", Unknown, 0),
        ("500-after", Unknown, 1),
        ("hang-after", Unknown, 1),
    ],
)
async def test_what_each_failed_create_is_taken_for(account, fault, kind, made):
    account.fake.faults["create"] = [fault]
    with pytest.raises((ProviderError, Wrong)) as told:
        await account.ask(account.provider.create(ORDER))
    assert type(told.value) is kind
    assert len(account.fake.pods) == made
    assert KEY not in str(told.value)


async def test_a_server_that_is_not_reached_has_made_nothing(account):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    account.provider._http._transport = httpx.MockTransport(refuse)
    with pytest.raises(ProviderError) as told:
        await account.ask(account.provider.create(ORDER))
    assert type(told.value) is ProviderError


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"no": "id"}', b""])
async def test_an_answer_that_tells_no_pod_leaves_it_open_whether_one_was_made(account, body):
    account.provider._http._transport = httpx.MockTransport(lambda _: httpx.Response(201, content=body))
    with pytest.raises(Unknown):
        await account.ask(account.provider.create(ORDER))


async def test_a_wrong_key_says_where_to_look():
    account = Account(key="rpa_OTHER")
    with pytest.raises(Wrong, match="check RUNPOD_API_KEY"):
        await account.ask(account.provider.list())
    await account.provider.close()


async def test_too_many_requests_make_everybody_wait(account):
    account.fake.faults["list"] = [429]
    with pytest.raises(Throttled) as told:
        await account.ask(account.provider.list())
    assert told.value.after_s == 7.0
    since = account.clock.monotonic()
    await account.ask(account.provider.list())
    assert account.clock.monotonic() - since == pytest.approx(7.0)


async def test_no_more_requests_a_minute_than_allowed_and_endings_first(account):
    async def many():
        import asyncio

        order = []

        async def note(what, work):
            await work
            order.append(what)

        lists = [note("list", account.provider.list()) for _ in range(PER_MINUTE + 5)]
        await asyncio.gather(*lists, note("end", account.provider.terminate("pod9")))
        return order

    order = await account.ask(many())
    assert account.clock.monotonic() >= 60.0
    assert order.index("end") < PER_MINUTE + 1


async def test_prices_are_of_the_whole_machine_and_only_of_what_is_offered(account):
    a40 = Candidate.read("NVIDIA A40")
    prices = await account.ask(account.provider.prices([A5000, *a40]))
    assert {(p.candidate.name, p.usd_per_hour) for p in prices} == {
        ("2x NVIDIA RTX A5000 (community)", 0.32),
        ("1x NVIDIA A40 (secure)", 0.44),
    }


async def test_pages_are_followed(account):
    pages = [
        {"pods": [{"id": "a", "status": "RUNNING"}], "pagination": {"hasNextPage": True, "nextCursor": "c"}},
        {"pods": [{"id": "b", "status": "NEW-WORD", "runtime": None, "cost": None}]},
    ]
    account.provider._http._transport = httpx.MockTransport(lambda _: httpx.Response(200, json=pages.pop(0)))
    assert [(p.id, p.status) for p in await account.ask(account.provider.list())] == [
        ("a", "running"),
        ("b", "provisioning"),
    ]


async def test_logs_and_bills_are_read(account):
    pod = await account.ask(account.provider.create(ORDER))
    account.fake.pods[pod.id].log["container"] += [f"line {n}" for n in range(300)]
    told = await account.ask(account.provider.log(pod.id, source="container", lines=2))
    assert told == "line 298\nline 299"
    with pytest.raises(Gone):
        await account.ask(account.provider.log("pod99", source="system"))
    await account.ask(account.clock.sleep(3600))
    now = account.clock.now()
    assert await account.ask(account.provider.billed(since=now - 7200, until=now)) == {pod.id: pytest.approx(0.32)}


def test_the_key_is_found_where_the_providers_tools_keep_it(tmp_path):
    config = tmp_path / "config.toml"
    assert api_key({"RUNPOD_API_KEY": " rpa_ENV "}, config=str(config)) == "rpa_ENV"
    with pytest.raises(SettingsError, match="set RUNPOD_API_KEY"):
        api_key({}, config=str(config))
    for text in ('apikey = "rpa_FILE"', '[default]\napi_key = "rpa_FILE"'):
        config.write_text(text)
        assert api_key({}, config=str(config)) == "rpa_FILE"
    config.write_text("= no toml")
    with pytest.raises(SettingsError, match="is not TOML"):
        api_key({}, config=str(config))


@pytest.mark.parametrize("text", ["", "2x ", "0x NVIDIA A40", "My GPU"])
def test_candidates_that_name_no_gpu_are_refused(text):
    with pytest.raises(SettingsError):
        Candidate.read(text)


def test_a_candidate_has_the_memory_of_its_gpu_unless_told():
    assert Candidate(gpu="NVIDIA A40").offer.gpu_memory_gib == 48
    assert Candidate(gpu="My GPU", gpu_memory_gib=141).offer.gpu_memory_gib == 141
    with pytest.raises(SettingsError, match="'My GPU': its memory is not known here"):
        Candidate(gpu="My GPU")
