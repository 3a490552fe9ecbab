"""Does work with a backend of deepagents, one piece per line of standard input.

    drive.py BACKEND SETTINGS

Each line is answered by one JSON object on standard output: the seconds that the
work took, or the error. Only public names of the packages are used, and each runs
in an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepagents.backends.sandbox import BaseSandbox

_ROOT = "/workspace"
_FILES = 20
_TEXT = "x" * 99 + "\n"
_FILL = f"""set -e
mkdir -p {_ROOT}/tree && cd {_ROOT}/tree
for n in $(seq {_FILES}); do
  {{ seq 200 | sed 's/$/ of a file that is searched/'; echo a needle; }} > f$n.txt
done
for size in 65536 10485760; do head -c $size /dev/urandom > {_ROOT}/of-$size; done
"""


class Sandgate:
    """Sandgate's Python client, with the server at SANDGATE_ADDRESS."""

    def __init__(self, settings: dict[str, Any]) -> None:
        del settings

    def make(self) -> BaseSandbox:
        """Create a sandbox."""
        from sandgate.deepagents import SandgateSandbox

        return SandgateSandbox.create(idle_ttl=600)

    def drop(self, backend: Any) -> None:
        """Delete it."""
        backend.__exit__(None, None, None)

    def settle(self) -> None:
        """Nothing to wait for here; the caller watches the server's pool."""


class LangchainKubernetes:
    """langchain-kubernetes in its raw mode, with a pool."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from langchain_kubernetes import KubernetesProvider, KubernetesProviderConfig

        self._provider = KubernetesProvider(
            KubernetesProviderConfig(
                mode="raw",
                namespace=settings["namespace"],
                image=settings["image"],
                warm_pool_size=settings["pool"],
                default_exec_timeout=20,
                # The limit is the request, and the test cluster's node says nothing of
                # its disk. It has no DNS either, and `sleep` does not end on SIGTERM.
                ephemeral_storage_limit="0",
                pod_template_overrides={"dnsPolicy": "Default", "terminationGracePeriodSeconds": 0},
            )
        )

    def make(self) -> BaseSandbox:
        """Claim a pod."""
        return self._provider.get_or_create()

    def drop(self, backend: Any) -> None:
        """Delete it, which fills the pool again."""
        self._provider.delete(sandbox_id=backend.id)

    def settle(self) -> None:
        """Wait for a pod in the pool, which is filled after deletions only.

        It counts before it runs, so it is given the time to.
        """
        for _ in range(200):
            if self._provider.pool_status().available:
                time.sleep(3)
                return
            time.sleep(0.1)
        raise TimeoutError("the pool stays empty")


class LangchainK8s:
    """langchain-k8s with a warm pool of agent-sandbox, by the pod's address."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def make(self) -> BaseSandbox:
        """Make a backend; its first call claims the sandbox."""
        from k8s_agent_sandbox.models import SandboxInClusterConnectionConfig
        from langchain_k8s import KubernetesSandbox

        return KubernetesSandbox(
            warmpool_name=self._settings["warm_pool"],
            namespace=self._settings["namespace"],
            connection_config=SandboxInClusterConnectionConfig(),
            max_output_size=64 << 20,  # a download is output of a command
        )

    def drop(self, backend: Any) -> None:
        """Delete the claim."""
        backend.stop()

    def settle(self) -> None:
        """Nothing to wait for here; the caller watches the pool."""


class LangchainK8sSandboxd(LangchainK8s):
    """langchain-k8s with sandboxd in the pods, by a forwarded port, its only way."""

    def make(self) -> BaseSandbox:
        """Make a backend; its first call claims the sandbox."""
        from langchain_k8s import SandboxdBackend

        return SandboxdBackend(
            warmpool_name=self._settings["warm_pool"],
            namespace=self._settings["namespace"],
            max_output_size=64 << 20,
        )


_BACKENDS = {
    "sandgate": Sandgate,
    "langchain-kubernetes": LangchainKubernetes,
    "langchain-k8s": LangchainK8s,
    "langchain-k8s-sandboxd": LangchainK8sSandboxd,
}


class WorkError(Exception):
    """The backend did not do its work."""


def _check(done: object, found: object) -> None:
    if not done:
        raise WorkError(str(found))


class Driver:
    """One sandbox that lives as long as the process, and short-lived ones."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._backend: Any = None

    def work(self, order: str) -> float:
        """Do one piece of work and return its seconds."""
        name, _, size = order.partition(" ")
        if name == "open":
            self._backend = self._source.make()
            result = self._backend.execute(_FILL)
            _check(result.exit_code == 0, result.output)
            return 0.0
        if name == "first":
            return self._first()
        action: Callable[[], object]
        action = getattr(self, f"_{name}")(int(size)) if size else getattr(self, f"_{name}")
        begun = time.perf_counter()
        action()
        return time.perf_counter() - begun

    def close(self) -> None:
        """Delete the sandbox."""
        if self._backend is not None:
            self._source.drop(self._backend)

    def _first(self) -> float:
        self._source.settle()
        begun = time.perf_counter()
        backend = self._source.make()
        try:
            result = backend.execute("true")
            took = time.perf_counter() - begun
        finally:
            self._source.drop(backend)
        _check(result.exit_code == 0, result.output)
        return took

    def _execute(self) -> None:
        result = self._backend.execute("true")
        _check(result.exit_code == 0, result.output)

    def _write(self) -> None:
        result = self._backend.write(f"{_ROOT}/written-{time.monotonic_ns()}.txt", _TEXT * 20)
        _check(result.error is None, result.error)

    def _read(self) -> None:
        result = self._backend.read(f"{_ROOT}/tree/f3.txt", 50, 100)
        _check(result.error is None and "60 of a file" in result.file_data["content"], result)

    def _grep(self) -> None:
        result = self._backend.grep("needle", f"{_ROOT}/tree")
        _check(result.matches is not None and len(result.matches) == _FILES, result)

    def _upload(self, size: int) -> Callable[[], object]:
        content = os.urandom(size)

        def action() -> None:
            result = self._backend.upload_files([(f"{_ROOT}/up-{size}", content)])
            _check(result is not None, "upload_files returned None")
            _check(result[0].error is None, result[0].error)

        return action

    def _download(self, size: int) -> Callable[[], object]:
        def action() -> None:
            result = self._backend.download_files([f"{_ROOT}/of-{size}"])
            _check(result[0].content is not None and len(result[0].content) == size, result[0].error)

        return action


def main() -> None:
    """Answer each line."""
    # Only answers go to standard output, whatever the packages print.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    driver: Driver | None = None
    for line in sys.stdin:
        begun = time.perf_counter()
        try:
            driver = driver or Driver(_BACKENDS[sys.argv[1]](json.loads(sys.argv[2])))
            answer: dict[str, object] = {"seconds": driver.work(line.strip())}
        except Exception as error:  # whatever a package raises is its answer
            after = time.perf_counter() - begun
            answer = {"error": f"after {after:.1f} s {type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), file=answers)
    if driver is not None:
        driver.close()


if __name__ == "__main__":
    main()
