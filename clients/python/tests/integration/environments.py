"""Virtual environments apart from the tests' own, kept between runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_HOME = PROJECT / ".venvs"


def interpreters() -> dict[str, str]:
    """Return the supported Pythons of this machine, by version."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for version in ("3.11", "3.12", "3.13"):
        pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        path = str(pyenv[-1]) if pyenv else shutil.which(f"python{version}")
        if path is not None:
            found.setdefault(version, path)
    return found


def environment(name: str, python: str, *requirements: str, stamp: str = "") -> Path:
    """Return the Python of an environment that holds what is required.

    It is made anew when the requirements or the stamp have changed.
    """
    directory = _HOME / name
    made = directory / ".made"
    wanted = "\n".join((python, stamp, *requirements))
    if not (made.exists() and made.read_text() == wanted):
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([python, "-m", "venv", directory], check=True)
        pip(directory / "bin" / "python", *requirements)
        made.write_text(wanted)
    return directory / "bin" / "python"


def pip(python: Path, *arguments: str) -> None:
    """Install into an environment."""
    command = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([*command, *arguments], check=True, cwd=PROJECT)
