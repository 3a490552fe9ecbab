"""Uses sessions whose pods die: prints an id for each, and goes on after a line."""

import sys
import time

from sandgate.deepagents import SandgateSession

for recreate in (False, True):
    with SandgateSession(recreate=recreate, ttl=600) as backend:
        assert backend.execute("echo kept >/workspace/file").exit_code == 0
        assert backend.execute("cat /workspace/file").output == "kept\n"
        print(backend.id, flush=True)
        sys.stdin.readline()
        first = backend.execute("cat /workspace/file")
        for _ in range(100):  # the cluster takes a moment to put another pod in its place
            if "the sandbox is creating" not in first.output:
                break
            time.sleep(0.2)
            first = backend.execute("cat /workspace/file")
        assert first.exit_code is None, first
        assert "lost" in first.output, first
        second = backend.execute("echo again")
        assert (second.exit_code == 0) == recreate, second
        if recreate:
            assert backend.execute("ls /workspace").output == "", second
print("told and made anew", flush=True)
