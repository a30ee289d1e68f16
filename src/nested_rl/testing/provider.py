"""What every provider of machines must do: for a pool, the difference between "not made" and "nobody knows" is money."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

import pytest
from attrs import evolve, frozen

from nested_rl.compute.provider import (
    Candidate,
    Gone,
    NoCapacity,
    Order,
    OutOfMoney,
    Pod,
    Provider,
    ProviderError,
    Refused,
    Throttled,
    Unknown,
    Wrong,
)

Failure: TypeAlias = Literal[
    "no capacity",
    "forbidden",
    "unauthorised",
    "no money",
    "too many requests",
    "server error",
    "no answer",
    "made, then a server error",
    "made, then no answer",
]
_KINDS: Mapping[Failure, type[Exception]] = {
    "no capacity": NoCapacity,
    "forbidden": Refused,
    "unauthorised": Wrong,
    "no money": OutOfMoney,
    "too many requests": Throttled,
    "server error": Unknown,
    "no answer": Unknown,
    "made, then a server error": Unknown,
    "made, then no answer": Unknown,
}
AWKWARD = 'it\'s "quoted" \\ {or} $not,\n[two lines] — ünï'


@frozen(kw_only=True)
class Sent:
    """What has arrived of an order."""

    name: str
    image: str
    env: Mapping[str, str]
    args: str


class Server(Protocol):
    """The other side, as a suite needs it: a fake that keeps its own books."""

    def fail(self, call: Literal["create", "list", "get", "terminate", "prices"], failure: Failure) -> None:
        """What goes wrong with the next such call."""

    def sent(self, pod_id: str) -> Sent:
        """What it was told of a pod."""

    def alive(self) -> int:
        """How many pods cost money."""


class ProviderSuite:
    """Override `provider` and `server`, which start with no pods; `offered` and `unheard_of` when the fake knows other GPUs."""

    @pytest.fixture
    def server(self) -> Server:
        """The fake that `provider` talks to."""
        raise NotImplementedError("override the fixture `server`")

    @pytest.fixture
    def provider(self, server: Server) -> Provider:
        """Closed by whoever makes it."""
        raise NotImplementedError("override the fixture `provider`")

    @pytest.fixture
    def offered(self) -> Candidate:
        """One GPU of a kind that is to be had."""
        return Candidate(gpu="NVIDIA RTX A5000", cloud="community", gpu_memory_gib=24)

    @pytest.fixture
    def unheard_of(self) -> Candidate:
        """A kind that the catalog does not have."""
        return Candidate(gpu="NVIDIA NOTHING", gpu_memory_gib=24)

    @pytest.fixture
    def order(self, offered: Candidate) -> Order:
        """Two GPUs."""
        return Order(
            name="nrl-suite-0-abc123-0", candidate=evolve(offered, gpus=2), image="image:tag", args="bash -c 'x'"
        )

    async def test_a_pod_is_made_seen_and_ended(self, provider: Provider, server: Server, order: Order) -> None:
        made = await provider.create(order)
        assert (made.name, made.gpus) == (order.name, 2)
        (listed,) = await provider.list()
        assert (listed.id, listed.name, listed.gpus) == (made.id, order.name, 2)
        assert listed.usd_per_hour > 0
        assert (await provider.get(made.id)).name == order.name
        assert server.alive() == 1
        await provider.terminate(made.id)
        assert server.alive() == 0

    async def test_a_pod_that_runs_has_an_address(self, provider: Provider, order: Order) -> None:
        made = await provider.create(order)
        seen = await _running(provider, made)
        assert seen.ssh is not None
        host, port = seen.ssh
        assert host
        assert 0 < port < 65536

    async def test_an_ended_pod_is_gone_and_ending_it_again_is_no_error(self, provider: Provider, order: Order) -> None:
        made = await provider.create(order)
        await provider.terminate(made.id)
        await provider.terminate(made.id)
        assert await provider.list() == []
        with pytest.raises(Gone):
            await provider.get(made.id)

    async def test_a_pod_that_never_was_is_gone(self, provider: Provider) -> None:
        with pytest.raises(Gone):
            await provider.get("no-such-pod")
        await provider.terminate("no-such-pod")

    async def test_names_keep_pods_apart(self, provider: Provider, order: Order) -> None:
        names = [f"nrl-suite-{slot}-abc123-0" for slot in range(3)]
        made = await asyncio.gather(*(provider.create(evolve(order, name=name)) for name in names))
        assert {pod.id: pod.name for pod in await provider.list()} == {
            pod.id: name for pod, name in zip(made, names, strict=True)
        }

    async def test_what_was_ordered_arrives_as_it_was(self, provider: Provider, server: Server, order: Order) -> None:
        env = {"PUBLIC_KEY": "ssh-ed25519 AAAA+/= me@here", "AWKWARD": AWKWARD, "EMPTY": ""}
        made = await provider.create(evolve(order, env=env, args=AWKWARD))
        assert server.sent(made.id) == Sent(name=order.name, image=order.image, env=env, args=AWKWARD)

    @pytest.mark.parametrize("failure", _KINDS)
    async def test_a_create_that_fails_says_whether_there_may_be_a_pod(
        self, provider: Provider, server: Server, order: Order, failure: Failure
    ) -> None:
        server.fail("create", failure)
        with pytest.raises((ProviderError, Wrong)) as told:
            await provider.create(order)
        assert type(told.value) is _KINDS[failure]
        assert server.alive() == int(failure.startswith("made"))
        if isinstance(told.value, Throttled):
            assert told.value.after_s > 0

    @pytest.mark.parametrize("failure", ["made, then a server error", "made, then no answer"])
    async def test_a_pod_of_an_unanswered_create_is_found_by_its_name(
        self, provider: Provider, server: Server, order: Order, failure: Failure
    ) -> None:
        server.fail("create", failure)
        with pytest.raises(Unknown):
            await provider.create(order)
        (found,) = await provider.list()
        assert found.name == order.name
        await provider.terminate(found.id)
        assert server.alive() == 0

    @pytest.mark.parametrize("call", ["list", "get", "terminate", "prices"])
    @pytest.mark.parametrize("failure", ["server error", "no answer", "too many requests"])
    async def test_a_question_that_fails_tells_nothing(
        self,
        provider: Provider,
        server: Server,
        order: Order,
        call: Literal["list", "get", "terminate", "prices"],
        failure: Failure,
    ) -> None:
        """Least of all that the pod is gone."""
        made = await provider.create(order)
        server.fail(call, failure)
        args = {"list": (), "prices": ([order.candidate],)}.get(call, (made.id,))
        with pytest.raises(ProviderError) as told:
            await getattr(provider, call)(*args)
        assert not isinstance(told.value, Gone)
        assert server.alive() == 1

    async def test_a_wrong_key_is_no_second_try(self, provider: Provider, server: Server) -> None:
        server.fail("list", "unauthorised")
        with pytest.raises(Wrong):
            await provider.list()

    async def test_prices_are_of_whole_machines_that_are_offered(
        self, provider: Provider, offered: Candidate, unheard_of: Candidate
    ) -> None:
        two = evolve(offered, gpus=2)
        prices = {price.candidate: price.usd_per_hour for price in await provider.prices([offered, two, unheard_of])}
        assert prices.keys() == {offered, two}
        assert prices[two] == pytest.approx(2 * prices[offered])
        assert prices[offered] > 0

    async def test_the_price_of_a_pod_is_the_catalogs(self, provider: Provider, order: Order) -> None:
        await provider.create(order)
        (price,) = await provider.prices([order.candidate])
        (pod,) = await provider.list()
        assert pod.usd_per_hour == pytest.approx(price.usd_per_hour)


async def _running(provider: Provider, made: Pod) -> Pod:
    """A fake needs some looks at most."""
    for _ in range(20):
        seen = await provider.get(made.id)
        if seen.status == "running" and seen.ssh is not None:
            return seen
        await asyncio.sleep(0.05)
    raise AssertionError(f"{made.id} does not run")
