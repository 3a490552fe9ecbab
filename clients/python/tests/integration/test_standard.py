"""LangChain's standard suite for sandboxes, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from sandgate import Config
from sandgate.deepagents import SandgateSandbox

# Since deepagents 0.7.7 writing replaces an existing file, and glob gives
# absolute paths of regular files at any depth. The suite has not followed.
_CONFLICT = pytest.mark.xfail(
    reason="contradicts deepagents >= 0.7.7; see langchain-ai/langchain#40283", strict=False
)


class TestSandgateStandard(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, real_config: Config) -> Iterator[SandgateSandbox]:
        with SandgateSandbox.create(config=real_config, labels={"tests": "standard"}, ttl=3600) as backend:
            yield backend

    @_CONFLICT
    def test_write_existing_file_fails(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_write_existing_file_fails(sandbox_backend, sandbox_test_root)

    @_CONFLICT
    def test_glob(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob(sandbox_backend, sandbox_test_root)

    @_CONFLICT
    def test_glob_basic_pattern(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_basic_pattern(sandbox_backend, sandbox_test_root)

    @_CONFLICT
    def test_glob_with_directories(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_with_directories(sandbox_backend, sandbox_test_root)

    @_CONFLICT
    def test_glob_hidden_files_explicitly(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_hidden_files_explicitly(sandbox_backend, sandbox_test_root)

    @_CONFLICT
    def test_glob_with_character_class(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_with_character_class(sandbox_backend, sandbox_test_root)

    @_CONFLICT
    def test_glob_with_question_mark(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_with_question_mark(sandbox_backend, sandbox_test_root)
