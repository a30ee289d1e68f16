"""A harness that asks the model inside the environment's worker: no child process for a rollout, nothing to install.

Written to what verifiers 0.3.1 and 0.4.0 have in common.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["InlineHarness"]

TRIES = 3
PAUSE_S = 0.5
_AGAIN = (408, 409, 429)


class InlineConfig(vf.HarnessConfig):
    """It has no settings of its own."""


class InlineHarness(vf.Harness[InlineConfig]):
    """One chat call a turn. A server that fails is asked again, `TRIES` times in all; then the rollout is an error."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,  # noqa: ARG002 - nothing runs there
        endpoint: str,
        secret: str,
        mcp_urls: Any,  # noqa: ARG002 - no tools
        data: Any,
        **_: Any,
    ) -> Any:
        """Ask for the next turn; the trace records what was asked and said."""
        system, prompt = self.resolve_prompt(data)
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
        messages = [{"role": "system", "content": system}] if system else []
        messages += [message_to_wire(message) for message in said]
        # verify and trust_env: the address is this machine's own; certificates and proxies would only cost time.
        async with httpx.AsyncClient(timeout=None, verify=False, trust_env=False) as client:  # noqa: S113, S501 - rollouts have a deadline of their own
            for attempt in range(TRIES):
                if attempt:
                    await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
                why, again = await _ask(client, endpoint, secret, {"model": ctx.model, "messages": messages}, attempt)
                if not again or trace.stop_condition is not None:
                    break
        return vf.ProgramResult(exit_code=1 if why else 0, stdout="", stderr=why)


async def _ask(
    client: httpx.AsyncClient, endpoint: str, secret: str, body: dict[str, Any], attempt: int
) -> tuple[str, bool]:
    """Why there is no answer ("" when there is one), and whether to ask again."""
    headers = {"authorization": f"Bearer {secret}", "x-stainless-retry-count": str(attempt)}
    try:
        reply = await client.post(f"{endpoint.rstrip('/')}/chat/completions", headers=headers, json=body)
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}", True
    if reply.is_success:
        return "", False
    return f"status {reply.status_code}: {reply.text[:2000]}", reply.status_code >= 500 or reply.status_code in _AGAIN
