"""An image that has nothing but busybox: no python, no GNU grep, no bash."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandgate import Config
from sandgate.deepagents import SandgateSandbox
from tests.integration.conftest import Server, needs_a_server

_MEDIA = "application/vnd.oci.image"


def _layer(busybox: str) -> bytes:
    out = io.BytesIO()
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(fileobj=out, mode="w") as tar:
        program = tarfile.TarInfo("bin/busybox")
        program.mode, program.size = 0o755, Path(busybox).stat().st_size
        with Path(busybox).open("rb") as opened:
            tar.addfile(program, opened)
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.LNKTYPE, "bin/busybox"
                tar.addfile(link)
    return out.getvalue()


def _archive(path: Path, busybox: str) -> None:
    """Write an image of one layer as a tarball of an OCI layout."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob(_layer(busybox), f"{_MEDIA}.layer.v1.tar")
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{_MEDIA}.config.v1+json"),
        "layers": [layer],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [blob(json.dumps(manifest).encode(), f"{_MEDIA}.manifest.v1+json")],
    }
    files["index.json"] = json.dumps(index).encode()
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="module")
def bare() -> Iterator[SandgateSandbox]:
    needs_a_server()
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs root and runc, and a static busybox: none is installed")
    with tempfile.TemporaryDirectory(prefix="sandgate-") as name:
        directory = Path(name)
        image = f"oci-archive:{directory}/image.tar"
        _archive(directory / "image.tar", busybox)
        (directory / "config.yaml").write_text(
            json.dumps(
                {
                    "templates": [
                        {
                            "name": "default",
                            "image": image,
                            "images": [image],
                        }
                    ]
                }
            )
        )
        with (
            Server(directory, "--config", str(directory / "config.yaml")) as server,
            SandgateSandbox.create(config=Config(address=server.address), ttl=600) as made,
        ):
            yield made


def test_s4_15_c24_there_is_no_python_and_no_gnu_grep(bare: SandgateSandbox) -> None:
    assert bare.execute("python3 -V").exit_code == 127
    assert bare.execute("bash -c true").exit_code == 127
    assert "BusyBox" in bare.execute("grep --help").output


@pytest.mark.parametrize("twin", [False, True])
async def test_s1_33_c12_every_file_method_works_without_tools(
    bare: SandgateSandbox,
    twin: bool,  # noqa: FBT001
) -> None:
    async def call(name: str, *arguments: Any, **options: Any) -> Any:
        method = getattr(bare, f"a{name}" if twin else name)
        return await method(*arguments, **options) if twin else method(*arguments, **options)

    root = f"/workspace/{'async' if twin else 'sync'}"
    assert (await call("write", f"{root}/src/a.py", "one\nneedle\n")).error is None
    assert (await call("write", f"{root}/b:c.txt", "needle")).error is None
    read = await call("read", f"{root}/src/a.py", 1, 1)
    assert (read.error, read.file_data["content"]) == (None, "needle")
    assert (await call("edit", f"{root}/src/a.py", "one", "1")).occurrences == 1
    listed = await call("ls", root)
    assert [(e["path"], e["is_dir"]) for e in listed.entries] == [
        (f"{root}/b:c.txt", False),
        (f"{root}/src", True),
    ]
    found = await call("grep", "needle", root)
    assert sorted((m["path"], m["line"]) for m in found.matches) == [
        (f"{root}/b:c.txt", 1),
        (f"{root}/src/a.py", 2),
    ]
    limited = await call("grep", "needle", root, "src/*.py", max_count=5)
    assert [m["path"] for m in limited.matches] == [f"{root}/src/a.py"]
    globbed = await call("glob", "*.py", root)
    assert [f["path"] for f in globbed.matches] == [f"{root}/src/a.py"]
    data = bytes(range(256)) * 8000
    assert [u.error for u in await call("upload_files", [(f"{root}/u", data)])] == [None]
    downloads = await call("download_files", [f"{root}/u", f"{root}/none"])
    assert (downloads[0].content, downloads[1].error) == (data, "file_not_found")
    assert (await call("delete", f"{root}/src")).error is None
    offloaded = await call("execute_with_offload", "seq 1000", f"{root}/large", max_inline_bytes=10)
    assert offloaded.offloaded
    response = await call("execute", f"wc -l < {root}/large; echo err >&2; exit 3")
    assert (response.output.split(), response.exit_code) == (["1000", "err"], 3)
