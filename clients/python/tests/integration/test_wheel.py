"""The wheel, in environments that have nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.environments import PROJECT, environment, interpreters, pip
from tests.integration.test_readme import BLOCKS, scripted

_PYTHONS = interpreters()
_OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, PROJECT)
    subprocess.run([*build, "--disable-pip-version-check"], check=True)
    (made,) = directory.glob("*.whl")
    return made


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(re.fullmatch(r"sandgate-[^/]+\.dist-info/licenses/LICENSE", name) for name in names), names
    assert "sandgate/py.typed" in names
    assert "sandgate/_gen/sandbox/v1/sandbox_service_pb2_grpc.pyi" in names
    assert all(name.startswith("sandgate") for name in names)
    assert not any("tests" in name for name in names)


def test_the_licence_is_the_repositorys() -> None:
    assert (PROJECT / "LICENSE").read_text() == (PROJECT.parents[1] / "LICENSE").read_text()


def _installed(wheel: Path, version: str, extra: str) -> Path:
    stamp = re.sub(r"\s+", " ", (PROJECT / "pyproject.toml").read_text().partition("[project.urls]")[0])
    python = environment(f"wheel-{version}", _PYTHONS[version], f"{wheel}{extra}", stamp=stamp)
    # What is kept from an earlier run has that run's wheel.
    pip(python, "--force-reinstall", "--no-deps", str(wheel))
    return python


def _run(python: Path, address: str, block: str, tmp_path: Path) -> None:
    environ = {**os.environ, "SANDGATE_ADDRESS": address, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "tests" / "scripted.py").write_text((PROJECT / "tests" / "scripted.py").read_text())
    done = subprocess.run(
        [python, "-c", scripted(block)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_s5_1_the_readme_runs_where_only_the_wheel_is_installed(
    wheel: Path, address: str, tmp_path: Path
) -> None:
    python = _installed(wheel, _OWN, "[deepagents]")
    for block in BLOCKS:
        _run(python, address, block, tmp_path)


@pytest.mark.parametrize("version", sorted(_PYTHONS.keys() - {_OWN}))
def test_other_pythons(wheel: Path, address: str, tmp_path: Path, version: str) -> None:
    python = _installed(wheel, version, "")
    blocks = [block for block in BLOCKS if "deepagents" not in block]
    assert len(blocks) == 3
    for block in blocks:
        _run(python, address, block, tmp_path)
    lacking = subprocess.run(
        [python, "-c", "import sandgate.deepagents"], capture_output=True, text=True, check=False
    )
    assert "pip install 'sandgate[deepagents]'" in lacking.stderr
