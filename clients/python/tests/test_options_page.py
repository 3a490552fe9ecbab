"""docs/clients/options.md has every option of this client, with its default."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import sandgate
from sandgate import (
    AccessPolicy,
    BuildOptions,
    Client,
    Config,
    EgressRule,
    ExecuteOptions,
    Resources,
    Sandbox,
    SandboxSpec,
    UploadFile,
    build_image,
)

_PAGE = Path(__file__).parents[3] / "docs" / "clients" / "options.md"


def _tables() -> dict[str, dict[str, str]]:
    """Return the default of each option of the column Python, by table."""
    tables: dict[str, dict[str, str]] = {}
    section = ""
    for line in _PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = line.strip("|").split(" | ")
        if section and line.startswith("|") and len(cells) >= 5:
            table = tables.setdefault(section, {})
            table |= dict.fromkeys(re.findall("`([^`]+)`", cells[1]), cells[4])
    return tables


_TABLES = _tables()


def _arguments(method: object) -> dict[str, object]:
    parameters = inspect.signature(method).parameters.values()  # type: ignore[arg-type]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _fields(of: type) -> dict[str, object]:
    return {f.name: f.default for f in dataclasses.fields(of)}


_METHODS: dict[str, list[object]] = {
    "Execute": [Sandbox.execute],
    "Attach": [Sandbox.attach],
    "Write to standard input": [Sandbox.write_stdin],
    "List commands": [Sandbox.processes],
    "List sandboxes": [Client.list, Client.list_page],
    "Update": [Client.update],
    "Clean up": [Client.cleanup],
    "Read": [Sandbox.read],
    "Write": [Sandbox.write],
    "Edit": [Sandbox.edit],
    "Glob": [Sandbox.glob],
    "Search": [Sandbox.search],
    "Make a directory": [Sandbox.make_directory],
    "Move": [Sandbox.move],
    "Remove": [Sandbox.remove],
    "Download": [Sandbox.download_file],
    "Connect": [Sandbox.connect],
    "Get a URL": [Sandbox.get_url],
    "Watch": [Client.watch],
    # Its options are those of `UploadFile`.
    "Upload": [Sandbox.upload_file],
}

_OPTIONS: dict[str, dict[str, object]] = {
    section: {name: default for method in methods for name, default in _arguments(method).items()}
    for section, methods in _METHODS.items()
}
_OPTIONS |= {
    "Client": _fields(Config),
    "Calls": {},
    "Create": dict.fromkeys(SandboxSpec.__annotations__),
    "Resources": _fields(Resources),
    "Access policy": _fields(AccessPolicy),
    "Egress rules": _fields(EgressRule),
    "Execute": {**dict.fromkeys(ExecuteOptions.__annotations__), **_OPTIONS["Execute"]},
    "Upload": _fields(UploadFile),
    "Build an image": {**dict.fromkeys(BuildOptions.__annotations__), **_arguments(build_image)},
}


def test_the_page_has_every_table() -> None:
    assert set(_TABLES) == set(_OPTIONS)


@pytest.mark.parametrize("section", _OPTIONS)
def test_a_table_has_every_option(section: str) -> None:
    assert set(_TABLES[section]) == set(_OPTIONS[section])


def test_every_method_with_options_has_a_table() -> None:
    known = [method for methods in _METHODS.values() for method in methods]
    for of in (Client, Sandbox):
        for name, method in vars(of).items():
            if inspect.isfunction(method) and not name.startswith("_") and _arguments(method):
                assert method in known, name


@pytest.mark.parametrize("section", _OPTIONS)
def test_a_table_has_the_defaults(section: str) -> None:
    for name, default in _OPTIONS[section].items():
        # None, 0 and nothing leave the choice to the server.
        if isinstance(default, bool | int | float | str) and default:
            expected = f"{default:g}" if isinstance(default, int | float) else default
            expected = "true" if default is True else expected
            assert expected in _TABLES[section][name], name


def test_the_errors_are_errors() -> None:
    text = _PAGE.read_text().partition("## Client")[2]
    for name in set(re.findall(r"`(\w+Error)`", text)) - {"TypeError", "ValueError"}:
        assert issubclass(getattr(sandgate, name), sandgate.SandgateError)
    reasons = {
        reason for reason in re.findall(r"(?<!\$)\b[A-Z]+(?:_[A-Z]+)+\b", text) if "SANDGATE_" not in reason
    }
    assert reasons - {"TIMED_OUT"} <= set(sandgate.errors.REASONS)
