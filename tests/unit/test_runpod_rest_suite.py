"""REST v2 passes the suite of all providers."""

import sys
from pathlib import Path

import pytest

from nested_rl.compute.runpod_rest import RunpodRest
from nested_rl.testing import ProviderSuite

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from fake_runpod import KEY, Backstage, FakeRunpod, transport


class TestRunpodRest(ProviderSuite):
    @pytest.fixture
    def server(self):
        return Backstage(FakeRunpod(lambda: 1_790_000_000.0))

    @pytest.fixture
    async def provider(self, server):
        provider = RunpodRest(key=KEY, transport=transport(server.fake))
        yield provider
        await provider.close()
