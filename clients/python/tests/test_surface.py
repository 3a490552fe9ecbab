"""The three clients have the same methods and options: clients/surface.json."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import TypedDict

import pytest

from sandgate import (
    AsyncClient,
    AsyncSandbox,
    BuildOptions,
    Client,
    Config,
    ExecuteOptions,
    Sandbox,
    SandboxSpec,
    abuild_image,
    build_image,
)


class _Differences(TypedDict, total=False):
    renamed: dict[str, str]
    absent: dict[str, str]
    only: dict[str, str]


class _Surface(TypedDict, total=False):
    names: list[str]
    python: _Differences


_SURFACES: dict[str, _Surface] = json.loads((Path(__file__).parents[2] / "surface.json").read_text())

# For sandboxes and backends only.
_INTERNAL = {"run", "follow", "disconnect"}


def _methods(of: type) -> list[str]:
    names = [name for name, value in vars(of).items() if inspect.isfunction(value)]
    return [name for name in names if not name.startswith("_") and name not in _INTERNAL]


def _arguments(method: object) -> list[str]:
    parameters = inspect.signature(method).parameters.values()  # type: ignore[arg-type]
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


@pytest.mark.parametrize(
    ("surface", "names"),
    [
        ("client methods", _methods(Client)),
        ("client methods", _methods(AsyncClient)),
        ("sandbox methods", _methods(Sandbox)),
        ("sandbox methods", _methods(AsyncSandbox)),
        ("client options", [f.name for f in dataclasses.fields(Config)]),
        ("create options", [*SandboxSpec.__annotations__]),
        ("execute options", [*ExecuteOptions.__annotations__]),
        ("search options", _arguments(Sandbox.search)),
        ("search options", _arguments(AsyncSandbox.search)),
        ("glob options", _arguments(Sandbox.glob)),
        ("glob options", _arguments(AsyncSandbox.glob)),
        ("build options", [*_arguments(build_image), *BuildOptions.__annotations__]),
        ("build options", [*_arguments(abuild_image), *BuildOptions.__annotations__]),
    ],
)
def test_the_surface_is_that_of_all_clients(surface: str, names: list[str]) -> None:
    expected = _SURFACES[surface]
    own = expected.get("python", {})
    renamed, absent, only = own.get("renamed", {}), own.get("absent", {}), own.get("only", {})
    wanted = [renamed.get(name, name) for name in expected["names"] if name not in absent]
    assert set(names) - set(wanted) == set(only)
    shared = [name for name in names if name not in only]
    if surface.endswith("methods"):
        assert shared == wanted, "in the same order"
    assert set(shared) == set(wanted)


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Sandbox, AsyncSandbox)])
def test_the_async_class_takes_the_same_arguments(one: type, other: type) -> None:
    for name in [*_methods(one), "__init__"]:
        sync, twin = (inspect.signature(vars(of)[name]).parameters for of in (one, other))
        # `on_output` may be a coroutine function there.
        assert [*sync] == [*twin], name
        assert [p.default for p in sync.values()] == [p.default for p in twin.values()], name
