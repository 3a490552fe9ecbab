"""Every message of the troubleshooting page, as a user gets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent

from sandgate import Client, Config, Sandbox
from sandgate.deepagents import (
    SandgateSandbox,
    SandgateSession,
    SandgateThreadBackend,
    create_sandbox_backend_factory,
)
from tests.integration.conftest import Server, needs_a_server
from tests.scripted import ScriptedModel

_PAGE = Path(__file__).parents[4] / "docs" / "clients" / "troubleshooting.md"
_SYMPTOMS = dict(
    re.findall(r"^### (.+?)\n\n```text\n(.*?)\n```", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
)

# What needs servers with TLS is in test_tls.
_ELSEWHERE = {
    "The server speaks TLS and the client does not",
    "The client speaks TLS and the server does not",
    "The server's certificate is not trusted",
    "The server's certificate has expired",
    "The server's certificate is for another name",
    "The server wants a certificate of the client",
    "The token is not known",
}


def _raised(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as e:  # noqa: BLE001 - whatever a user would see
        return str(e)
    pytest.fail("nothing was raised")


def _refused_by(configuration: dict[str, Any], **spec: Any) -> str:
    needs_a_server()
    with tempfile.TemporaryDirectory(prefix="sandgate-") as name:
        config = Path(name) / "config.yaml"
        config.write_text(json.dumps(configuration))
        with Server(Path(name), "--config", str(config)) as server, Client(server.address) as client:
            return _raised(lambda: client.create(**spec))


def _without_deepagents() -> str:
    blocked = "import sys; sys.modules['deepagents'] = None; import sandgate.deepagents"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1]


class _Seen:
    """Brings each symptom about."""

    def __init__(self, client: Client, box: Sandbox) -> None:
        self.client, self.box, self.config = client, box, client.config

    def _backend(self, **options: Any) -> SandgateSandbox:
        return SandgateSandbox.connect(self.box.id, config=self.config, **options)

    def message(self, symptom: str) -> str:
        return getattr(self, re.sub(r"\W+", "_", symptom.lower()))()  # type: ignore[no-any-return]

    def nobody_answers(self) -> str:
        return _raised(Client("127.0.0.1:1").server_info)

    def the_address_is_malformed(self) -> str:
        return _raised(lambda: Client("ftp://host:1"))

    def a_token_is_not_sent(self) -> str:
        return _raised(lambda: Client("sandbox.example.com:7777", token="t"))  # noqa: S106

    def there_is_no_such_template(self) -> str:
        return _raised(lambda: self.client.create(template="none"))

    def the_template_does_not_allow_an_image(self) -> str:
        images = {"name": "default", "images": ["oci:/images/*"]}
        return _refused_by({"templates": [images]}, image="elsewhere:latest")

    def a_sandbox_does_not_get_ready_in_time(self) -> str:
        return _refused_by({"limits": {"create_timeout": "1ms"}})

    def the_id_is_taken_by_another_sandbox(self) -> str:
        return _raised(lambda: self.client.create(sandbox_id=self.box.id, env={"other": "spec"}))

    def the_sandbox_is_gone(self) -> str:
        return _raised(lambda: SandgateSandbox.connect("stale", config=self.config))

    def an_ai_agent_s_sandbox_is_gone(self) -> str:
        with SandgateSession(config=self.config, ttl=600) as session:
            session.start()
            self.client.delete(session.id)
            return session.execute("true").output

    def a_backend_for_threads_is_used_without_one(self) -> str:
        return _raised(lambda: SandgateThreadBackend(config=self.config).execute("true"))

    def a_command_ran_out_of_time(self) -> str:
        response = self._backend(command_timeout=0.2).execute("sleep 60")
        assert response.exit_code == 124
        return response.output

    def a_policy_refuses_a_command(self) -> str:
        response = self._backend(deny_commands=["rm -rf"]).execute("rm -rf /workspace")
        assert response.exit_code == 126
        return response.output

    def a_policy_refuses_a_write(self) -> str:
        return str(self._backend(allow_prefixes=["/tmp"]).write("/workspace/x", "x").error)

    def the_sandbox_s_own_permissions_refuse_a_write(self) -> str:
        return str(self._backend().write("/usr/x", "x").error)

    def a_command_is_not_found(self) -> str:
        return _raised(lambda: self.box.execute(["no-such-program"]))

    def text_is_given_as_the_source_of_an_upload(self) -> str:
        return _raised(lambda: self.box.upload_file("/workspace/x", "text"))  # type: ignore[arg-type]

    def deepagents_is_not_installed(self) -> str:
        return _without_deepagents().removeprefix("ModuleNotFoundError: ")

    def a_backend_factory_is_given_to_deepagents(self) -> str:
        factory: Any = create_sandbox_backend_factory(config=self.config)
        with pytest.raises(TypeError) as caught:
            create_deep_agent(model=ScriptedModel(), backend=factory)
        return str(caught.value)


def _pattern(text: str) -> str:
    return ".*".join(re.escape(part) for part in text.split("…"))


@pytest.mark.parametrize("symptom", sorted(_SYMPTOMS.keys() - _ELSEWHERE))
def test_s5_31_c21_c23_the_message_is_as_written(symptom: str, real_client: Client, box: Sandbox) -> None:
    message = _Seen(real_client, box).message(symptom)
    assert re.fullmatch(_pattern(_SYMPTOMS[symptom]), message, re.DOTALL), message


def test_the_symptoms_that_are_proved_elsewhere_are_on_the_page() -> None:
    assert _SYMPTOMS.keys() >= _ELSEWHERE


def message_of(symptom: str) -> str:
    """Return what the page says, as a pattern that a message must match."""
    # An ellipsis of the message itself stands there too.
    return f"(?s)^{_pattern(_SYMPTOMS[symptom])}$"


def test_a_config_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDGATE_ADDRESS", raising=False)
    assert Config.load().address == "127.0.0.1:7777"
