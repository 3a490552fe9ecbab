"""Suspends and resumes a sandbox through the Python client."""

import sandgate

with sandgate.Client() as client:
    box = client.create(template="durable")
    try:
        before = box.info()
        assert before.state == "ACTIVE", before
        box.execute("echo kept >/data/file; echo lost >/workspace/file")
        events = box.execute_stream("sleep 600", detach=True)
        started = next(events)
        assert isinstance(started, sandgate.Started), started
        events.close()

        assert box.suspend().state == "SUSPENDED"
        assert box.suspend().state == "SUSPENDED"
        assert box.id in [info.sandbox_id for info in client.list(states=["SUSPENDED"])]
        try:
            box.execute("true")
        except sandgate.SandboxNotActiveError as error:
            assert "resume" in error.message, error
        else:
            raise AssertionError("a command ran in a suspended sandbox")

        after = box.resume()
        assert after.state == "ACTIVE", after
        assert after.incarnation != before.incarnation, after
        assert box.incarnation == after.incarnation, box
        said = box.execute("cat /data/file; ls /workspace")
        assert said.stdout == "kept\n", said
        assert started.exec_id not in [process.exec_id for process in box.processes()]
    finally:
        box.delete()
print("suspended and resumed")
