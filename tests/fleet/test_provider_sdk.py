"""The official package as a provider, against the fake that answers its GraphQL."""

import asyncio
import getpass
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fake_runpod import KEY, Backstage
from pods import Compute, no_check
from runpod_server import Server

from nested_rl.compute.pool_terms import Terms
from nested_rl.compute.provider import Candidate, NoCapacity, Order, ProviderError, Unknown, Wrong
from nested_rl.compute.runpod_sdk import RunpodSDK
from nested_rl.errors import SettingsError
from nested_rl.testing import ProviderSuite
from nested_rl.types import Need

if importlib.util.find_spec("runpod") is None:
    pytest.skip("runpod is not installed: make test-fleet", allow_module_level=True)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the package's own imports
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ORDER = Order(name="nrl-run-0-abc", candidate=Candidate(gpu="NVIDIA A40"), image="image:tag", env={"A": "1"}, args="x")


@pytest.fixture
def backstage(tmp_path, monkeypatch):
    server = Server(tmp_path, real=False)
    monkeypatch.setenv("RUNPOD_API_BASE_URL", server.url)
    yield Backstage(server.fake)
    server.close()


@pytest.fixture
async def sdk(backstage):
    provider = RunpodSDK(key=KEY)
    yield provider
    await provider.close()


class TestRunpodSDK(ProviderSuite):
    @pytest.fixture
    def server(self, backstage):
        return backstage

    @pytest.fixture
    def provider(self, sdk):
        return sdk


async def test_what_is_sent_is_what_was_ordered(sdk, backstage):
    made = await sdk.create(ORDER)
    body = backstage.fake.pods[made.id].body
    assert body["gpu"] == {"id": "NVIDIA A40", "count": 1}
    assert (body["cloud"], body["disk"], body["ports"], body["startSsh"]) == ("SECURE", 80, ["22/tcp"], False)
    query = backstage.fake.requests[-1][2]["query"]
    assert 'allowedCudaVersions: ["12.8", "12.9", "13.0"' in query
    assert "supportPublicIp: true" in query
    assert KEY not in query


async def test_fields_that_the_server_does_not_know_are_refused_by_the_fake(sdk, backstage, monkeypatch):
    from runpod.api.queries import pods

    await sdk.list()
    monkeypatch.setattr(pods, "QUERY_POD", "query x { myself { pods { id nonsense } } }")
    with pytest.raises(Wrong, match="Cannot query field"):
        await sdk.list()


async def test_the_key_is_this_accounts_and_the_process_keeps_its_own(sdk, backstage):
    import runpod

    before = runpod.api_key
    await sdk.create(ORDER)
    other = RunpodSDK(key="rpa_OTHER")
    with pytest.raises(Wrong, match="check RUNPOD_API_KEY") as told:
        await other.list()
    await other.close()
    assert "rpa_OTHER" not in str(told.value)
    assert runpod.api_key == before


async def test_nothing_is_imported_before_the_first_request(tmp_path):
    code = "import sys; from nested_rl.compute.runpod_sdk import RunpodSDK; RunpodSDK(key='k'); print('runpod' in sys.modules)"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


async def test_a_server_that_is_not_there_has_made_nothing(monkeypatch):
    monkeypatch.setenv("RUNPOD_API_BASE_URL", "http://127.0.0.1:9")
    provider = RunpodSDK(key=KEY)
    with pytest.raises(ProviderError, match="not reached") as told:
        await provider.create(ORDER)
    assert type(told.value) is ProviderError
    await provider.close()


async def test_no_answer_in_time_leaves_it_open_and_the_loop_free(monkeypatch):
    """The server takes the connection and says nothing."""
    held, ended = asyncio.Event(), asyncio.Event()

    async def hold(reader, writer):
        await reader.readline()
        held.set()
        await ended.wait()
        writer.close()
        await writer.wait_closed()

    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    monkeypatch.setenv("RUNPOD_API_BASE_URL", f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    provider = RunpodSDK(key=KEY)
    creating = asyncio.ensure_future(provider.create(ORDER))
    await asyncio.wait_for(held.wait(), 60)  # this loop answers while the package waits
    provider._timeout_s = 0.2
    with pytest.raises(ProviderError, match="TimeoutError") as told:
        await provider.list()
    assert type(told.value) is ProviderError
    with pytest.raises(Unknown, match="TimeoutError"):
        await provider.create(ORDER)
    ended.set()
    with pytest.raises(Unknown):
        await creating
    silent.close()
    await silent.wait_closed()
    await provider.close()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("There are no longer any instances available with enough disk space.", NoCapacity),
        ("This machine does not have the resources to deploy your pod.", NoCapacity),
        ("Something went wrong. Please try again later or contact support.", Unknown),
        ("Syntax Error: Unexpected Name.", Wrong),
    ],
)
async def test_prose_is_told_apart(sdk, backstage, monkeypatch, said, kind):
    await sdk.list()
    from runpod.api import graphql
    from runpod.error import QueryError

    def refuse(query, api_key=None):
        raise QueryError(said, query)

    monkeypatch.setattr(graphql, "run_graphql_query", refuse)
    with pytest.raises((ProviderError, Wrong)) as told:
        await sdk.create(ORDER)
    assert type(told.value) is kind


@pytest.mark.parametrize("fault", [None, "500-after", "hang-after"])
async def test_a_pool_rents_real_pods_through_it_without_a_log(monkeypatch, fault):
    """The host key is believed by its proof: this provider has no log. What an unanswered create has made is found."""
    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        server = Server(Path(folder) / "pods")
        server.fake.faults["create"] = [fault] if fault else []
        monkeypatch.setenv("RUNPOD_API_BASE_URL", server.url)
        compute = Compute(
            ["NVIDIA RTX A5000"],
            folder=folder,
            key=KEY,
            provider="sdk",
            user=getpass.getuser(),
            python=sys.executable,
            preflight=no_check,
            recheck=no_check,
            terms=Terms(look_s=1.0),
            max_machines=1,
        )
        try:
            async with compute.machine(Need(gpus=1)) as machine:
                assert (await machine.run(["echo", "hello"])).stdout == "hello\n"
            await compute.close()
            assert len(server.fake.pods) == 1
            assert server.fake.alive() == []
            assert {path for _, path, _ in server.fake.requests if path != "/graphql"} == set()
            ledger, meter = server.fake.usd(), sum(row.usd for row in compute.costs())
            assert meter >= ledger > 0
        finally:
            await compute.close()
            server.close()


def test_providers_have_names():
    with pytest.raises(SettingsError, match="'rest', 'sdk' or a Provider"):
        Compute(["NVIDIA RTX A5000"], provider="soap")
