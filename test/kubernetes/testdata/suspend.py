"""Suspends and resumes a sandbox through the Python client."""

import sandgate

with sandgate.Client() as client:
    box = client.create(template="durable")
    try:
        before = box.info()
        assert before.state == "ACTIVE", before
        box.execute("echo kept >/data/file; echo lost >/workspace/file")

        assert box.suspend().state == "SUSPENDED"
        assert box.suspend().state == "SUSPENDED"
        assert [info.sandbox_id for info in client.list(states=["SUSPENDED"])] == [box.id]
        try:
            box.execute("true")
        except sandgate.SandboxNotActiveError as error:
            print(error)
        else:
            raise AssertionError("a command ran in a suspended sandbox")

        after = box.resume()
        assert after.state == "ACTIVE", after
        assert after.incarnation != before.incarnation, after
        assert box.incarnation == after.incarnation, box
        said = box.execute("cat /data/file; ls /workspace")
        assert said.stdout == "kept\n", said
    finally:
        box.delete()
print("suspended and resumed")
