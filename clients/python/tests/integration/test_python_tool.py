"""`SandgatePython`: code in a sandbox, files in the agent's state."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.messages import HumanMessage

from sandgate import Client, Config
from sandgate.deepagents import SandgatePython
from tests.scripted import ScriptedModel, outputs

_LABELS = {"tests": "python-tool"}


@pytest.fixture
def tool(real_config: Config) -> Iterator[SandgatePython]:
    made = SandgatePython(config=real_config, labels=_LABELS)
    yield made
    made.close()


def _agent(tool: SandgatePython) -> Any:
    model = ScriptedModel(tool="execute_python", argument="code")
    return create_deep_agent(model=model, middleware=[tool])


def _turn(*code: str, files: dict[str, Any] | None = None) -> Any:
    return {"messages": [HumanMessage("\n".join(code))], "files": files or {}}


def _data(content: str, encoding: str = "utf-8") -> dict[str, str]:
    return {"content": content, "encoding": encoding}


@pytest.mark.parametrize("twin", [False, True])
async def test_s2_6_c19_code_sees_the_files_and_gives_its_own_back(
    tool: SandgatePython,
    real_client: Client,
    twin: bool,  # noqa: FBT001
) -> None:
    files = {
        "/data.csv": _data("a,b\n1,2\n"),
        "/raw.bin": _data(base64.b64encode(b"\0\xff").decode(), "base64"),
        "/old.txt": _data("old"),
    }
    code = (
        "print(open('data.csv').read(), open('/workspace/raw.bin','rb').read()); raise SystemExit(3)",
        "open('d/new.txt','w').write('new')",
        "import os; os.makedirs('d'); open('d/new.txt','w').write('new'); open('b','wb').write(b'\\xff')",
        "import os; os.remove('old.txt'); open('data.csv','a').write('3,4\\n'); print(os.listdir('d'))",
    )
    agent = _agent(tool)
    asked = _turn(*code, files=files)
    result = await agent.ainvoke(asked) if twin else agent.invoke(asked)
    received = outputs(result)
    assert received[0].startswith("exit=3\na,b\n1,2\n b'\\x00\\xff'\n")
    assert received[1].startswith("exit=1\n")
    assert "FileNotFoundError" in received[1]
    assert received[2] == "exit=0\n"
    # The sandbox of the run is one, so what was made is still there.
    assert received[3] == "exit=0\n['new.txt']\n"
    found = {name: data["content"] for name, data in result["files"].items()}
    assert found == {
        "/data.csv": "a,b\n1,2\n3,4\n",
        "/raw.bin": files["/raw.bin"]["content"],
        "/d/new.txt": "new",
        "/b": base64.b64encode(b"\xff").decode(),
    }
    assert result["files"]["/b"]["encoding"] == "base64"
    # The sandbox went with the run, and is no part of what the caller sees.
    assert [*real_client.list(labels=_LABELS)] == []
    assert "python_sandbox" not in result


def test_s2_6_files_are_copied_before_each_call(tool: SandgatePython) -> None:
    class Editing(ScriptedModel):
        """Changes a virtual file between two calls."""

        def _generate(self, messages: Any, *rest: Any, **more: Any) -> Any:
            result = super()._generate(messages, *rest, **more)
            reply: Any = result.generations[0].message
            calls = reply.tool_calls
            for call in calls:
                if call["args"]["code"].startswith("EDIT"):
                    call.update(
                        name="edit_file",
                        args={"file_path": "/f.txt", "old_string": "one", "new_string": "two"},
                    )
                if call["args"].get("code", "").startswith("DELETE"):
                    call.update(name="delete", args={"file_path": "/f.txt"})
            return result

    agent = create_deep_agent(model=Editing(tool="execute_python", argument="code"), middleware=[tool])
    show = "import os; print(open('f.txt').read() if os.path.exists('f.txt') else 'gone')"
    shown = outputs(agent.invoke(_turn(show, "EDIT", show, "DELETE", show, files={"/f.txt": _data("one")})))
    assert [t for t in shown if t.startswith("exit=")] == [
        "exit=0\none\n",
        "exit=0\ntwo\n",
        "exit=0\ngone\n",
    ]


def test_s2_6_without_calls_there_is_no_sandbox(tool: SandgatePython, real_client: Client) -> None:
    model = ScriptedModel(tool="execute_python", argument="code", calls=False)
    create_deep_agent(model=model, middleware=[tool]).invoke(_turn("x"))
    assert [*real_client.list(labels=_LABELS)] == []


def test_s2_6_failures_are_in_the_result(real_config: Config) -> None:
    tool = SandgatePython(config=real_config, timeout=5, max_file_bytes=10, ttl=600)
    received = outputs(
        _agent(tool).invoke(
            _turn("import time; print('on', flush=True); time.sleep(60)", "open('big','w').write('x'*100)")
        )
    )
    assert received[0].startswith("exit=124\non\n")
    assert "/workspace/big has more than 10 bytes" in received[1]
    tool.close()
    lost = SandgatePython(config=Config(address="127.0.0.1:1"))
    (answer,) = outputs(_agent(lost).invoke(_turn("print(1)")))
    assert answer.startswith("Error: UnavailableError: the server at 127.0.0.1:1 cannot be reached")
    lost.close()
