"""The table of errors: the shared one, the API's, and what arrives."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

import sandgate
from sandgate import (
    Client,
    InvalidRequestError,
    SandboxNotFoundError,
    SandgateError,
    UnavailableError,
    errors,
)
from sandgate._gen.sandbox.v1.sandbox_errors_pb2 import ErrorReason
from sandgate._hints import HINTS
from tests.fake_files import Refused
from tests.fake_server import FakeServer

_SHARED = Path(__file__).parents[2]


def test_reasons_are_the_shared_table() -> None:
    table = json.loads((_SHARED / "errors.json").read_text())
    assert {reason: kind.__name__ for reason, kind in errors.REASONS.items()} == table


def test_codes_are_the_shared_table() -> None:
    table = json.loads((_SHARED / "error_codes.json").read_text())
    assert {code: kind.__name__ for code, kind in errors.CODES.items()} == table


def test_hints_are_the_shared_table() -> None:
    assert json.loads((_SHARED / "hints.json").read_text()) == HINTS


def test_every_reason_of_the_api_has_a_class() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 - no mapping
    assert reasons - {"UNSPECIFIED"} == set(errors.REASONS)


def test_every_class_is_exported() -> None:
    for kind in {*errors.REASONS.values(), *errors.CODES.values(), SandgateError}:
        assert getattr(sandgate, kind.__name__) is kind


def test_codes_are_those_of_grpc() -> None:
    assert set(errors.CODES) <= {code.name for code in grpc.StatusCode}


def test_an_error_has_everything_that_the_server_sent(client: Client) -> None:
    with pytest.raises(SandboxNotFoundError) as caught:
        client.get("nobody")
    error = caught.value
    assert error.code == "NOT_FOUND"
    assert error.reason == "SANDBOX_NOT_FOUND"
    assert error.metadata == {"sandbox_id": "nobody"}
    assert error.request_id == "req-1"
    assert str(error) == "there is no sandbox 'nobody' (SANDBOX_NOT_FOUND)"


def test_an_unknown_reason_falls_back_on_its_code(fake: FakeServer, client: Client) -> None:
    fake.faults["GetSandbox"] = [Refused(grpc.StatusCode.INVALID_ARGUMENT, "LATER_REASON", "no")]
    with pytest.raises(InvalidRequestError) as caught:
        client.get("x")
    assert caught.value.reason == "LATER_REASON"


def test_an_unreachable_server_is_unavailable(tmp_path: Path) -> None:
    with Client(f"unix://{tmp_path}/nothing.sock") as client, pytest.raises(UnavailableError):
        client.server_info()
