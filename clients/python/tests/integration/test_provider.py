"""The provider against a real server."""

from __future__ import annotations

import asyncio

import pytest

from sandgate import Client, Config, InvalidRequestError, SandboxNotFoundError, TemplateNotFoundError
from sandgate.deepagents import SandgateProvider


async def test_s5_16_s5_17_s5_18_s5_19_s1_26_a_sandboxs_life(real_config: Config) -> None:
    labels = {"tests": "provider"}
    async with SandgateProvider(config=real_config, default_labels=labels, ttl_seconds=600) as provider:
        raced = await asyncio.gather(
            *(provider.aget_or_create(sandbox_id="py-provider") for _ in range(4)),
            *(asyncio.to_thread(provider.get_or_create, sandbox_id="py-provider") for _ in range(4)),
        )
        first = raced[0]
        assert (await first.awrite("/workspace/kept", "kept")).error is None
        assert {b.read("/workspace/kept").file_data["content"] for b in raced} == {"kept"}  # type: ignore[index]
        # An id with another spec is still the sandbox of that id.
        other = provider.get_or_create(sandbox_id="py-provider", env={"A": "B"}, ttl_seconds=60)
        assert other.read("/workspace/kept").error is None
        assert (await provider.areconnect("py-provider")).ls("/workspace").entries
        page = provider.list(status="running", labels=labels)
        assert [(s.id, s.status) for s in page.sandboxes] == [("py-provider", "running")]
        assert page.cursor is None
        assert not (await provider.alist(status="suspended", labels=labels)).sandboxes
        stats = await provider.astats(idle_threshold_seconds=300)
        assert (stats.total, stats.running, stats.idle, stats.thread_ids) == (1, 1, 0, 0)
        assert provider.stats(idle_threshold_seconds=0).idle == 1
        assert stats.warm == 0
        with pytest.raises(TemplateNotFoundError, match="no pool"):
            await provider.apool_status()
        assert provider.cleanup(max_idle_seconds=300).kept == 1
        result = await provider.acleanup(max_idle_seconds=0)
        assert (result.deleted, result.kept) == (("py-provider",), 0)
        with pytest.raises(SandboxNotFoundError):
            provider.reconnect("py-provider")
        provider.delete(sandbox_id="py-provider")
        for backend in (*raced, other):
            await backend.aclose()


def test_s5_17_c8_a_cursor_goes_on_where_a_page_ended(real_client: Client, real_config: Config) -> None:
    labels = {"tests": "cursor"}
    with SandgateProvider(config=real_config, default_labels=labels, ttl_seconds=600) as provider:
        made = {provider.get_or_create().id for _ in range(3)}
        first = real_client.list_page(labels=labels, states=["ACTIVE"], page_size=1)
        second = real_client.list_page(
            labels=labels, states=["ACTIVE"], page_size=1, page_token=first.next_page_token
        )
        assert (len(first.sandboxes), len(second.sandboxes)) == (1, 1)
        rest = provider.list(status="running", cursor=second.next_page_token)
        assert rest.cursor is None
        pages = (first.sandboxes[0].sandbox_id, second.sandboxes[0].sandbox_id, rest.sandboxes[0].id)
        assert set(pages) == made
        assert len(rest.sandboxes) == 1
        assert {info.sandbox_id for info in real_client.list(labels=labels, page_size=2)} == made
        with pytest.raises(InvalidRequestError) as caught:
            provider.list(status="running", cursor="nonsense")
        assert caught.value.reason == "PAGE_TOKEN_INVALID"
        for sandbox_id in made:
            provider.delete(sandbox_id=sandbox_id)
