"""The backend for deepagents: every operation is a call of the API, none a script.

Needs the extra `sandgate[deepagents]`.

    from deepagents import create_deep_agent
    from sandgate.deepagents import SandgateSandbox

    with SandgateSandbox.create() as backend:
        agent = create_deep_agent(model=..., backend=backend)
"""

try:
    from deepagents.backends import sandbox as _  # noqa: F401
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        "sandgate.deepagents needs deepagents: pip install 'sandgate[deepagents]'"
    ) from e

from sandgate.deepagents.backend import SandgateSandbox
from sandgate.deepagents.manager import SandgateManager
from sandgate.deepagents.provider import ListedSandbox, ProviderStats, SandboxPage, SandgateProvider
from sandgate.deepagents.python_tool import TOOL_MODE_PROMPT_SUFFIX, SandgatePython
from sandgate.deepagents.session import SandgateSession, create_sandbox_backend_factory
from sandgate.deepagents.streaming import SandgateStreaming
from sandgate.deepagents.threads import SandgateThreadBackend

__all__ = [
    "TOOL_MODE_PROMPT_SUFFIX",
    "ListedSandbox",
    "ProviderStats",
    "SandboxPage",
    "SandgateManager",
    "SandgateProvider",
    "SandgatePython",
    "SandgateSandbox",
    "SandgateSession",
    "SandgateStreaming",
    "SandgateThreadBackend",
    "create_sandbox_backend_factory",
]
