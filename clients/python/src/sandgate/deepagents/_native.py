"""What the backends share: the contract's file methods, natively."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from sandgate.deepagents import _file_plans
from sandgate.deepagents._audit import audited
from sandgate.deepagents._commands import CommandBackend

if TYPE_CHECKING:
    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )

    from sandgate._calls import Plan

T = TypeVar("T")


class NativeBackend(CommandBackend):
    """The contract's methods over one server; which sandbox, a subclass says."""

    grep_exclude_dirs: tuple[str, ...] = (".git",)

    def ls(self, path: str) -> LsResult:
        """List a directory: `path` and `is_dir` of each entry, links not followed."""
        return self._client.run(self._plan(_file_plans.ls(self._target, path)))

    async def als(self, path: str) -> LsResult:
        """Async twin of `ls`."""
        return await self._async_client.run(self._plan(_file_plans.ls(self._target, path)))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a window of lines, or a small binary file as base64.

        Args:
            file_path: Absolute path.
            offset: Lines to skip.
            limit: At most this many lines.
        """
        return self._client.run(self._plan(_file_plans.read(self._target, file_path, offset, limit)))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Async twin of `read`."""
        return await self._async_client.run(
            self._plan(_file_plans.read(self._target, file_path, offset, limit))
        )

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a text file of any size, with its parents; replaces an existing one."""
        return self._client.run(self._write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Async twin of `write`."""
        return await self._async_client.run(self._write(file_path, content))

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the contract's signature
    ) -> EditResult:
        """Replace a text that occurs once, or every time with `replace_all`."""
        return self._client.run(self._edit(file_path, old_string, new_string, replace_all=replace_all))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the contract's signature
    ) -> EditResult:
        """Async twin of `edit`."""
        plan = self._edit(file_path, old_string, new_string, replace_all=replace_all)
        return await self._async_client.run(plan)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a literal text.

        Args:
            pattern: The text.
            path: Directory or file; relative to, and by default, the working
                directory. Paths of matches are absolute.
            glob: Only files that match: without "/", their name at any depth.
            max_count: At most this many matches in all.
        """
        return self._client.run(self._grep(pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Async twin of `grep`."""
        return await self._async_client.run(self._grep(pattern, path, glob, max_count))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files by name; without "/" at any depth. Paths are absolute.

        Args:
            pattern: With `*`, `?`, `[a-z]`, `{a,b}` and `**`.
            path: Directory to search below; default: "/".
        """
        return self._client.run(self._plan(_file_plans.glob(self._target, pattern, path)))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Async twin of `glob`."""
        return await self._async_client.run(self._plan(_file_plans.glob(self._target, pattern, path)))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with all that is in it."""
        return self._client.run(self._delete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Async twin of `delete`."""
        return await self._async_client.run(self._delete(file_path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files with their parents: one response each, in order."""
        return self._client.run(self._upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Async twin of `upload_files`."""
        return await self._async_client.run(self._upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files: one response each, in order."""
        return self._client.run(self._plan(_file_plans.download_files(self._target, paths)))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Async twin of `download_files`."""
        return await self._async_client.run(self._plan(_file_plans.download_files(self._target, paths)))

    def _write_preflight(self, file_path: str) -> WriteResult | None:
        return self._client.run(self._plan(_file_plans.make_parents(self._target, file_path)))

    async def _awrite_preflight(self, file_path: str) -> WriteResult | None:
        return await self._async_client.run(self._plan(_file_plans.make_parents(self._target, file_path)))

    def _write(self, path: str, content: str) -> Plan[WriteResult]:
        with audited(self._audit_log, "write", path, size=len(content)) as record:
            result = yield from self._plan(_file_plans.write(self._target, path, content))
            record["error"] = result.error
            return result

    def _edit(self, path: str, old: str, new: str, *, replace_all: bool) -> Plan[EditResult]:
        with audited(self._audit_log, "edit", path, replace_all=replace_all) as record:
            plan = _file_plans.edit(self._target, path, old, new, replace_all=replace_all)
            result = yield from self._plan(plan)
            record["error"] = result.error
            return result

    def _delete(self, path: str) -> Plan[DeleteResult]:
        with audited(self._audit_log, "delete", path) as record:
            result = yield from self._plan(_file_plans.delete(self._target, path))
            record["error"] = result.error
            return result

    def _upload(self, files: list[tuple[str, bytes]]) -> Plan[list[FileUploadResponse]]:
        with ExitStack() as stack:
            records = [
                stack.enter_context(audited(self._audit_log, "upload", path, size=len(content)))
                for path, content in reversed(files)
            ]
            results = yield from self._plan(_file_plans.upload_files(self._target, files))
            for record, result in zip(reversed(records), results, strict=True):
                record["error"] = result.error
            return results

    def _plan(self, plan: Plan[T]) -> Plan[T]:
        return _file_plans.strict(plan) if self._raise else plan

    def _grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None
    ) -> Plan[GrepResult]:
        root = _file_plans.search_root(self._working_directory, path)
        exclude = self.grep_exclude_dirs
        return self._plan(
            _file_plans.grep(self._target, pattern, root, glob, max_count=max_count, exclude_dirs=exclude)
        )
