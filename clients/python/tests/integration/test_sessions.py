"""Sandboxes that are made when needed, and the names that S1, S2 and S4 know."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, StateBackend
from langgraph.checkpoint.memory import InMemorySaver

from sandgate import Client, Config, SandboxNotFoundError, TemplateNotFoundError, UnsupportedError
from sandgate.deepagents import SandgateSandbox, SandgateSession, create_sandbox_backend_factory
from tests.fake_server import wait_for
from tests.integration.conftest import Server
from tests.scripted import ScriptedModel, in_thread, outputs, turn


def _is_there(client: Client, sandbox_id: str) -> bool:
    try:
        return client.get(sandbox_id).id == sandbox_id
    except SandboxNotFoundError:
        return False


def test_s1_1_s1_4_s1_5_a_backend_of_an_agent(real_config: Config) -> None:
    with SandgateSession(config=real_config, ttl=600) as backend:
        agent = create_deep_agent(model=ScriptedModel(), backend=backend)
        received = outputs(agent.invoke(turn("echo from the agent")))
        assert received[0].startswith("from the agent\n")
        response = backend.execute("echo out; exit 2")
        assert (response.output, response.exit_code) == ("out\n", 2)
        assert backend.upload_files([("/workspace/s.py", b"print('hi')\n")])[0].error is None
        assert backend.download_files(["/workspace/s.py"])[0].content == b"print('hi')\n"


async def test_s1_2_s1_3_s1_12_c4_lazy_start_stop_and_reuse(real_config: Config, real_client: Client) -> None:
    backend = SandgateSession(config=real_config, sandbox_id="py-lazy", ttl=600)
    assert backend.id == "py-lazy"
    assert not _is_there(real_client, "py-lazy")
    assert not backend.stop()
    with backend:
        assert backend.start() is backend
        assert _is_there(real_client, "py-lazy")
        assert backend.write("/workspace/x", "kept").error is None
        assert (await backend.aexecute("cat /workspace/x")).output == "kept"
    assert not _is_there(real_client, "py-lazy")
    async with backend:
        assert (await backend.aexecute("ls /workspace")).output == ""
        assert _is_there(real_client, "py-lazy")
    assert not _is_there(real_client, "py-lazy")
    await backend.astart()
    assert await backend.astop()


def test_s4_2_a_template_and_a_context_manager(real_config: Config, real_client: Client) -> None:
    with SandgateSandbox.create(config=real_config, template="default", ttl=600) as backend:
        assert real_client.get(backend.id).info().template == "default"
        assert backend.execute("echo hi").output == "hi\n"
    assert not _is_there(real_client, backend.id)
    with pytest.raises(TemplateNotFoundError):
        SandgateSandbox.create(config=real_config, template="no-such-template")


def test_s1_13_an_ephemeral_session_is_fresh_each_time(real_config: Config) -> None:
    with SandgateSession(config=real_config, reuse_sandbox=False, ttl=600) as backend:
        backend.start()
        backend.write("/workspace/x", "x")
        backend.start()
        assert backend.execute("ls /workspace").output == ""


def test_s1_21_s1_22_s1_26_s1_27_c5_a_named_sandbox_outlives_its_client(real_config: Config) -> None:
    options: Any = {"config": real_config, "sandbox_id": "user-session-123", "ttl": 600}
    with SandgateSession(skip_cleanup=True, labels={"user": "1"}, **options) as first:
        first.write("/workspace/x", "kept")
    with SandgateSession(**options) as second:
        assert second.execute("cat /workspace/x").output == "kept"
        with Client(config=real_config) as client:
            assert client.get(second.id).info().labels["user"] == "1"


def test_s1_12_c6_a_lost_sandbox_is_an_error_or_recreated_with_a_notice(own_server: Server) -> None:
    config = Config(address=own_server.address)
    for recreate in (False, True):
        with (
            SandgateSession(config=config, recreate=recreate, ttl=600) as backend,
            Client(config=config) as client,
        ):
            backend.write("/workspace/x", "x")
            client.delete(backend.id)
            first = backend.execute("ls /workspace")
            assert (first.exit_code, first.output.startswith("Error:")) == (None, True)
            assert "lost" in first.output
            second = backend.execute("ls /workspace")
            assert (second.exit_code == 0) == recreate


def test_s1_12_c6_a_failed_sandbox_is_lost_too(own_server: Server) -> None:
    config = Config(address=own_server.address)
    for recreate in (False, True):
        with (
            SandgateSession(config=config, recreate=recreate, ttl=600) as backend,
            Client(config=config) as client,
        ):
            backend.write("/workspace/x", "x")
            failed = client.get(backend.id).info()
            own_server.fail_all()
            wait_for(lambda client=client, session=backend: client.get(session.id).info().state == "FAILED")  # type: ignore[misc]
            first = backend.execute("ls /workspace")
            assert (first.exit_code, "lost" in first.output) == (None, True)
            second = backend.execute("ls /workspace")
            assert (second.exit_code == 0) == recreate
            assert (second.output == "") == recreate
            assert (client.get(backend.id).info().incarnation != failed.incarnation) == recreate


def test_s1_25_s2_1_s2_4_a_sandbox_that_the_caller_made(real_config: Config) -> None:
    with Client(config=real_config) as client, client.create(ttl=600) as raw:
        with SandgateSandbox.connect(raw.id, config=real_config, command_timeout=300) as backend:
            assert backend.id == raw.id
            assert backend.execute("echo wrapped").output == "wrapped\n"
        # The caller owns its lifetime.
        assert raw.info().state == "ACTIVE"
        assert raw.delete()


def test_s2_3_only_absolute_paths_are_moved(backend: SandgateSandbox) -> None:
    assert backend.upload_files([("relative", b"")])[0].error == "invalid_path"
    assert backend.download_files(["relative"])[0].error == "invalid_path"


def test_s4_4_c18_a_factory_gives_backends(real_config: Config) -> None:
    factory = create_sandbox_backend_factory(config=real_config, ttl=600)
    first = factory(None)
    assert factory(None) is first
    agent = create_deep_agent(model=ScriptedModel(), backend=first)
    assert outputs(agent.invoke(turn("echo made")))[0].startswith("made\n")
    first.stop()
    threads = in_thread("py-factory", lambda: factory(None))
    assert threads is not first
    agent = create_deep_agent(model=ScriptedModel(), backend=threads, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "py-factory"}}
    agent.invoke(turn("echo kept > /workspace/x"), thread)
    assert outputs(agent.invoke(turn("cat /workspace/x"), thread))[0].startswith("kept\n")
    in_thread("py-factory", threads.stop)


def test_s4_11_c9_whether_it_came_from_a_pool_is_known(real_config: Config) -> None:
    with SandgateSandbox.create(config=real_config, ttl=600) as backend:
        with Client(config=real_config) as client:
            assert backend.from_pool == client.get(backend.id).info().from_pool
        assert backend.from_pool is not None
    assert SandgateSandbox("unasked", config=real_config).from_pool is None


def test_s1_28_s1_30_s5_7_labels_and_env(real_config: Config) -> None:
    with SandgateSession(config=real_config, labels={"team": "a"}, env={"GIVEN": "yes"}, ttl=600) as backend:
        assert backend.execute("echo $GIVEN").output == "yes\n"
        with Client(config=real_config) as client:
            assert [s.sandbox_id for s in client.list(labels={"team": "a"})] == [backend.id]
    with SandgateSession(config=real_config, labels={"": "refused"}) as refused:
        assert "REQUEST_INVALID" in refused.execute("true").output


def test_s1_31_s5_20_c7_lifetimes_end_a_sandbox(own_server: Server) -> None:
    config = Config(address=own_server.address)
    with (
        SandgateSession(config=config, ttl=600, skip_cleanup=True) as backend,
        Client(config=config) as client,
    ):
        backend.start()
        info = client.get(backend.id).info()
        assert info.create_time is not None
        assert info.expire_time == info.create_time + timedelta(seconds=600)
        # However slow its creation was, it lives until it is here.
        client.update(backend.id, ttl=1)
        wait_for(lambda: not _is_there(client, backend.id), 90)
        assert "lost" in backend.execute("true").output


def test_s4_5_c18_a_composite_backend(real_config: Config) -> None:
    with SandgateSandbox.create(config=real_config, ttl=600) as sandbox:
        backend = CompositeBackend(default=sandbox, routes={"/memories/": StateBackend()})
        agent = create_deep_agent(model=ScriptedModel(), backend=backend)
        assert outputs(agent.invoke(turn("echo routed > /workspace/x")))
        assert backend.read("/workspace/x").file_data["content"] == "routed"  # type: ignore[index]
        assert backend.write("/workspace/y", "y").error is None
        assert sandbox.execute("cat /workspace/y").output == "y"
        routed = CompositeBackend(default=StateBackend(), routes={"/sandbox/": sandbox})
        assert routed.write("/sandbox/tmp/z", "z").error is None
        assert sandbox.execute("cat /tmp/z").output == "z"
        listed = routed.ls("/sandbox/tmp").entries
        assert listed is not None
        assert "/sandbox/tmp/z" in [e["path"] for e in listed]


def test_s4_13_s5_22_every_method_has_an_async_twin() -> None:
    names = (
        "execute",
        "read",
        "write",
        "edit",
        "ls",
        "grep",
        "glob",
        "upload_files",
        "download_files",
        "delete",
    )
    assert all(callable(getattr(SandgateSandbox, f"a{name}")) for name in names)


async def test_suspend_and_resume_or_a_clear_refusal(real_config: Config) -> None:
    with Client(config=real_config) as client:
        able = "suspend" in client.server_info().capabilities
    with SandgateSandbox.create(config=real_config, ttl=600) as backend:
        if not able:
            for refused in (backend.suspend, backend.resume):
                with pytest.raises(UnsupportedError, match="cannot suspend"):
                    refused()
            with pytest.raises(UnsupportedError, match="cannot suspend"):
                await backend.asuspend()
            return
        backend.write("/workspace/x", "kept")
        await backend.asuspend()
        await backend.aresume()
        assert backend.execute("cat /workspace/x").output == "kept"


def test_large_output_of_a_tool_is_kept_in_a_file(real_config: Config) -> None:
    with SandgateSandbox.create(config=real_config, ttl=600) as backend:
        agent = create_deep_agent(model=ScriptedModel(), backend=backend)
        (received,) = outputs(agent.invoke(turn("seq 100000; exit 3")))
        assert "failed with exit code 3" in received
        assert "/large_tool_results/" in received
        assert len(received) < 10_000
        whole = backend.execute("cat /large_tool_results/*").output
        assert whole == "".join(f"{n}\n" for n in range(1, 100_001))


@pytest.mark.parametrize("twin", [False, True])
async def test_offloading_a_commands_output(backend: SandgateSandbox, twin: bool) -> None:  # noqa: FBT001
    async def run(command: str, path: str, **options: Any) -> Any:
        if twin:
            return await backend.aexecute_with_offload(command, path, **options)
        return backend.execute_with_offload(command, path, **options)

    small = await run("printf small; exit 4", "/workspace/o/none", max_inline_bytes=5)
    assert (small.offloaded, small.response.output, small.response.exit_code) == (False, "small", 4)
    assert backend.execute("test -e /workspace/o/none").exit_code == 1
    large = await run("seq 1000; exit 4", "/workspace/o/large", max_inline_bytes=100)
    assert (large.offloaded, large.response.exit_code) == (True, 4)
    # Before deepagents 0.7.9 there is no such field.
    assert getattr(large, "preview_has_truncation_marker", True)
    assert not large.response.truncated
    assert large.response.output == "1\n2\n3\n4\n5\n... [990 lines truncated] ...\n996\n997\n998\n999\n1000\n"
    assert backend.execute("wc -l < /workspace/o/large").output.strip() == "1000"
    capped = await run(
        "seq 100000; exit 5", "/workspace/o/capped", max_inline_bytes=100, max_capture_bytes=5000
    )
    assert (capped.offloaded, capped.response.truncated, capped.response.exit_code) == (True, True, 5)
    assert backend.execute("wc -c < /workspace/o/capped").output.strip() == "5000"
    late = await run("seq 1000; sleep 4242", "/workspace/o/late", max_inline_bytes=100, timeout=3)
    assert (late.offloaded, late.response.exit_code) == (True, 124)
    assert late.response.output.endswith("timed out after 3 seconds")
    long = await run("head -c 9000 /dev/zero | tr '\\0' x", "/workspace/o/long", max_inline_bytes=100)
    assert not getattr(long, "preview_has_truncation_marker", False)
    assert "9000 bytes in all" in long.response.output
    unwritable = await run("seq 1000", "/usr/none", max_inline_bytes=100)
    assert not unwritable.offloaded
    assert unwritable.response.output.endswith("\n1000\n")


def test_grep_passes_over_excluded_directories(real_config: Config, backend: SandgateSandbox) -> None:
    class Excluding(SandgateSandbox):
        grep_exclude_dirs = (".git", "node_modules")

    for path in (".git/x", "node_modules/x", "src/x"):
        backend.write(f"/workspace/g/{path}", "needle\n")

    def found(searching: SandgateSandbox, path: str) -> list[str]:
        return sorted(
            m["path"].removeprefix("/workspace/g/") for m in searching.grep("needle", path).matches or []
        )

    with Excluding.connect(backend.id, config=real_config) as excluding:
        assert found(backend, "/workspace/g") == ["node_modules/x", "src/x"]
        assert found(excluding, "/workspace/g") == ["src/x"]
        assert found(excluding, "/workspace/g/node_modules") == ["node_modules/x"]


def test_s4_16_s5_32_c22_everything_can_come_from_the_environment(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDGATE_ADDRESS", address)
    with SandgateSession(ttl=600) as backend:
        assert backend.execute("echo env").output == "env\n"


def test_c24_what_the_default_image_has(backend: SandgateSandbox) -> None:
    tools = "sh cat wc seq chmod mkdir rm touch grep find ls test printf base64 python3"
    assert backend.execute(f"for t in {tools}; do command -v $t >/dev/null || echo $t; done").output == ""
