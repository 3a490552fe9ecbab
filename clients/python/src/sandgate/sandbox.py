"""One sandbox: commands and files. `sandgate.aio_sandbox` has the async twin."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO, Literal, Self

from sandgate import _plans, _stream_plans, process
from sandgate._atomic import atomic_write
from sandgate._context import Managed
from sandgate._handle import Handle, as_bytes
from sandgate.files import UploadFile

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Unpack

    from sandgate import files
    from sandgate._connect import PortSocket
    from sandgate.client import Client
    from sandgate.info import SandboxInfo, SandboxUrl
    from sandgate.options import ExecuteOptions, SignalScope


class Sandbox(Handle, Managed):
    """One sandbox, sync.

    As a context manager, a sandbox that `Client.create` made is deleted at the
    end; any other is left alone.
    """

    def __init__(
        self,
        client: Client,
        sandbox_id: str,
        incarnation: str = "",
        *,
        created: SandboxInfo | None = None,
        owned: bool = False,
    ) -> None:
        super().__init__(client.config, sandbox_id, incarnation, created=created, owned=owned)
        self._client = client

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Return a handle whose calls carry more metadata, such as `x-request-id`.

        It never deletes the sandbox at the end of a `with`.
        """
        client = self._client.with_metadata(metadata)
        return type(self)(client, self.id, self.incarnation, created=self.created)

    def info(self) -> SandboxInfo:
        """Return the sandbox as it is now. Does not count as activity."""
        return self._client.run(_plans.get(self.id))

    def execute(
        self,
        command: str | Sequence[str],
        *,
        on_output: Callable[[process.Output], None] | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> process.Result:
        """Run a command to its end and return its output.

        A command that ran is not an error, whatever its exit code. When the
        caller is interrupted, the command and all its descendants are killed.

        Args:
            command: A script for `/bin/sh -c`, or a program and its arguments.
            on_output: Called with each piece of output as it comes.
            **options: See `sandgate.options.ExecuteOptions`.

        Raises:
            CommandStartError: The command could not be started.
            ConnectionLostError: The connection broke and did not come back.
        """
        collector = process.Collector()
        with closing(self.execute_stream(command, **options)) as events:
            for event in events:
                collector.add(event)
                if on_output is not None and isinstance(event, process.Output):
                    on_output(event)
        return collector.result()

    def execute_stream(
        self, command: str | Sequence[str], **options: Unpack[ExecuteOptions]
    ) -> Generator[process.Event, None, None]:
        """Run a command and yield its events: `Started`, output, `Exited`.

        The client reconnects transparently. A generator that is closed
        before `Exited` kills the command with all its descendants, unless it was
        started with `detach`.
        """
        return self._client.follow(self._follow_new(command, options))

    def attach(
        self, exec_id: str, position: int = 0, *, until_streams_end: bool = False
    ) -> Generator[process.Event, None, None]:
        """Replay a command's events from a position and go on live.

        Closing the generator leaves the command alone.

        Raises:
            ExecNotFoundError: There is no such command, or it is kept no more.
        """
        return self._client.follow(self._follow_old(exec_id, position, until_streams_end=until_streams_end))

    def write_stdin(self, exec_id: str, data: bytes, *, offset: int, eof: bool = False) -> int:
        """Append to the standard input of a command; return the next offset.

        Args:
            exec_id: A command that was started with `stdin_open` or a terminal.
            data: The bytes.
            offset: Bytes that were sent before these; what was taken already is
                skipped, so a repeated call is safe.
            eof: Standard input ends after these bytes.
        """
        return self._client.run(_plans.write_stdin(self._target, exec_id, data, offset=offset, eof=eof))

    def signal(self, exec_id: str, signal: str = "SIGTERM", scope: SignalScope = "TREE") -> bool:
        """Send a signal to a command; False if no process was left."""
        return self._client.run(_plans.signal(self._target, exec_id, signal, scope))

    def resize_terminal(self, exec_id: str, rows: int, columns: int) -> None:
        """Set the size of a command's terminal, in characters."""
        self._client.run(_plans.resize_terminal(self._target, exec_id, rows, columns))

    def processes(self, *, include_ended: bool = False) -> builtins.list[process.Process]:
        """Return the commands that run, the oldest first."""
        return self._client.run(_plans.processes(self._target, include_ended=include_ended))

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_bytes: int = 0
    ) -> files.Lines:
        """Read a window of lines of a text file.

        Args:
            path: Absolute path of a regular file; links are followed.
            offset: Lines to skip.
            limit: At most this many lines; None: no limit but `max_bytes`.
            max_bytes: At most this many bytes; 0: 512 000.
        """
        return self._client.run(
            _plans.read_lines(self._target, path, offset=offset, limit=limit, max_bytes=max_bytes)
        )

    def write(
        self, path: str, content: bytes | str, *, mode: int | None = None, create_only: bool = False
    ) -> files.WriteResult:
        """Write a small file in one message, atomically, with its parents.

        Larger content than the server's message limit goes through `upload_file`.
        """
        return self._client.run(
            _plans.write_file(self._target, path, as_bytes(content), mode=mode, create_only=create_only)
        )

    def edit(
        self,
        path: str,
        old_text: str,
        new_text: str,
        *,
        replace_all: bool = False,
        allow_empty_old: bool = False,
    ) -> files.EditResult:
        """Replace text in a regular UTF-8 file, atomically.

        With `allow_empty_old`, an empty old text fills an empty file.

        Raises:
            FileError: With reason EDIT_TEXT_NOT_FOUND, or EDIT_NOT_UNIQUE when
                the text occurs more than once and `replace_all` is not set.
        """
        return self._client.run(
            _plans.edit_file(
                self._target,
                path,
                old_text.encode(),
                new_text.encode(),
                replace_all=replace_all,
                allow_empty_old=allow_empty_old,
            )
        )

    def list(self, path: str) -> builtins.list[files.FileInfo]:
        """Return the entries of a directory, sorted by name."""
        return self._client.run(_plans.list_directory(self._target, path))

    def glob(
        self,
        path: str,
        pattern: str,
        *,
        shallow: bool = False,
        include_directories: bool = False,
        include_links: bool = False,
        max_results: int = 0,
    ) -> files.GlobResult:
        """Find files by their name below a directory.

        Args:
            path: Absolute path of the directory.
            pattern: With `*`, `?`, `[a-z]`, `{a,b}` and `**`.
            shallow: A pattern without "/" matches only directly in `path`.
            include_directories: List directories too.
            include_links: Links to files count as files.
            max_results: At most this many; 0: 10 000.
        """
        return self._client.run(
            _plans.glob_files(
                self._target,
                path,
                pattern,
                shallow=shallow,
                include_directories=include_directories,
                include_links=include_links,
                max_results=max_results,
            )
        )

    def search(
        self,
        path: str,
        pattern: str,
        *,
        regexp: bool = False,
        ignore_case: bool = False,
        glob: str = "",
        exclude_dirs: Sequence[str] = (),
        max_matches: int = 0,
        max_file_bytes: int = 0,
        context_before: int = 0,
        context_after: int = 0,
        include_binary: bool = False,
    ) -> files.SearchResult:
        """Find lines that contain a text, or match an RE2 pattern with `regexp`.

        Args:
            path: Absolute path of a directory, searched with all below it, or of
                one file.
            pattern: What to find.
            regexp: The pattern is a regular expression in RE2 syntax.
            ignore_case: Upper and lower case are the same.
            glob: Only files that match; empty: all.
            exclude_dirs: Names of directories that are skipped at any depth.
            max_matches: At most this many lines; 0: 10 000.
            max_file_bytes: Larger files are skipped; 0: none.
            context_before: Lines before each match, at most 20.
            context_after: Lines after each match, at most 20.
            include_binary: Files with NUL bytes are searched too.
        """
        return self._client.run(
            _plans.search_files(
                self._target,
                path,
                pattern,
                regexp=regexp,
                ignore_case=ignore_case,
                glob=glob,
                exclude_dirs=exclude_dirs,
                max_matches=max_matches,
                max_file_bytes=max_file_bytes,
                context_before=context_before,
                context_after=context_after,
                include_binary=include_binary,
            )
        )

    def stat(self, path: str) -> files.FileInfo:
        """Describe a file, directory or link."""
        return self._client.run(_plans.stat_file(self._target, path))

    def make_directory(self, path: str, *, parents: bool = True, mode: int | None = None) -> bool:
        """Make a directory; False when it was there already."""
        return self._client.run(_plans.make_directory(self._target, path, parents=parents, mode=mode))

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Rename a file or directory within one file system."""
        self._client.run(_plans.move_file(self._target, source, destination, overwrite=overwrite))

    def remove(self, path: str, *, recursive: bool = False, allow_missing: bool = False) -> bool:
        """Remove a file, link or directory; False when there was nothing."""
        return self._client.run(
            _plans.remove_file(self._target, path, recursive=recursive, allow_missing=allow_missing)
        )

    def upload(self, *wanted: UploadFile) -> builtins.list[files.UploadResult]:
        """Write files of any size, each atomically, with their parents.

        One result per file, in order; a failed one carries its error. Files
        above 1 MiB are calls of their own; the server takes at most 10 000
        others in a row, and fails the call beyond that.

        Raises:
            OSError: A source cannot be read. Files before it may be written.
        """
        return self._client.run(_stream_plans.upload(self._target, wanted))

    def upload_file(
        self, path: str, source: files.Source, *, mode: int | None = None, create_only: bool = False
    ) -> files.UploadResult:
        """Write one file of any size from bytes, a local path or an open file.

        Raises:
            FileError: The file was not written; it is then as it was before.
            OSError: The source cannot be read.
        """
        return self._client.run(
            _stream_plans.upload_one(self._target, UploadFile(path, source, mode, create_only))
        )

    def download(self, *paths: str) -> builtins.list[files.DownloadResult]:
        """Read files into memory.

        One result per path, in order; a failed one carries its error.
        """
        return self._client.run(_stream_plans.download(self._target, paths))

    def download_file(
        self, path: str, target: os.PathLike[str] | BinaryIO | None = None
    ) -> files.DownloadResult:
        """Read one file of any size, into memory or to a local path or open file.

        A file at a local path is replaced by a new one with its permission bits,
        which is made beside it: the directory must be writable.

        Raises:
            FileError: The file could not be read to its end. A local path is then
                what it was before; an open file has the bytes that arrived.
            PermissionError: The directory of a local path is not writable.
        """
        if target is None:
            return self._client.run(_stream_plans.download_file(self._target, path))
        if not isinstance(target, os.PathLike):
            return self._client.run(_stream_plans.download_to(self._target, path, target))
        with atomic_write(target) as opened:
            return self._client.run(_stream_plans.download_to(self._target, path, opened))

    def connect(self, port: int, *, host: str = "localhost", timeout: float | None = None) -> PortSocket:
        """Connect to a TCP port that a program in the sandbox listens on.

        The socket is one of this machine, with a file descriptor and half-close:
        hand it to `http.client`, `ssl` or `select`. If the connection breaks,
        `recv` raises `ConnectionResetError`, whose `__cause__` is the
        `SandgateError`. Closing the client ends its connections.

        Args:
            port: 1 to 65 535.
            host: `localhost`, or a loopback address of the sandbox.
            timeout: Seconds until the program must have accepted. Default: the
                client's `call_timeout`.

        Raises:
            PortClosedError: No program accepts connections on the port.
            QuotaExceededError: The sandbox has too many open connections.
            DeadlineExceededError: The connection was not open in time.
        """
        opened: PortSocket = self._client.run(self._connect(port, host, timeout))
        return opened

    def get_url(
        self, target: int | str, *, method: Literal["GET", "PUT"] = "GET", ttl: float | None = None
    ) -> SandboxUrl:
        """Return a URL by which browsers and HTTP clients reach a port or a file.

        Nothing need listen on the port yet, and the file need not exist. A request
        for the URL of a suspended sandbox resumes it.

        Args:
            target: A port, or the absolute path of a file.
            method: Of a file's URL: to read the file, or to write it.
            ttl: Seconds that the URL can be used. Default: an hour, or what the
                server allows if that is less.

        Raises:
            UnsupportedError: The server has no listener for URLs.
        """
        return self._client.run(_plans.get_url(self._target, target, method=method, ttl=ttl))

    def delete(self) -> bool:
        """End the sandbox and everything in it; False when there was none."""
        return self._client.run(_plans.delete(self._target))

    def suspend(self) -> SandboxInfo:
        """Stop its processes and keep its disk, where the server can.

        Raises:
            UnsupportedError: The server's provider cannot.
        """
        return self._client.suspend(self.id)

    def resume(self) -> SandboxInfo:
        """Bring it back from being suspended; returns when a command can run.

        It has lost its processes, so it is another incarnation, which this
        handle expects from now on.
        """
        info = self._client.resume(self.id)
        self._target.adopt(info.incarnation)
        return info

    def _leave(self) -> None:
        if self.owned:
            self.delete()
