"""Plans for the calls of clients and sandboxes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, TypedDict

from sandgate import _calls, _values, files, info, process
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as files_pb
from sandgate._gen.sandbox.v1 import sandbox_info_pb2 as info_pb
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as process_pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb
from sandgate._gen.sandbox.v1 import sandbox_url_pb2 as url_pb
from sandgate.errors import InternalError
from sandgate.options import create_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandgate._calls import Plan
    from sandgate.config import Config
    from sandgate.options import (
        AccessPolicy,
        EgressRule,
        SandboxSpec,
        SandboxState,
        SignalScope,
    )


class _Scope(TypedDict):
    sandbox_id: str
    expected_incarnation: str
    access: lifecycle_pb.AccessPolicy | None


@dataclasses.dataclass(slots=True)
class Target:
    """Which sandbox, and which incarnation of it; empty: any.

    Plans look at it when they run, not when they are made.
    """

    sandbox_id: str
    incarnation: str = ""
    access: AccessPolicy | None = None
    """Narrows each call, beyond what the sandbox itself allows."""

    def narrowed(self) -> lifecycle_pb.AccessPolicy | None:
        """Return the policy as it is sent."""
        return None if self.access is None else self.access.message()

    def scope(self) -> _Scope:
        """Return the fields that requests about files have in common."""
        return {
            "sandbox_id": self.sandbox_id,
            "expected_incarnation": self.incarnation,
            "access": self.narrowed(),
        }

    def adopt(self, incarnation: str) -> None:
        """Expect another incarnation from now on, unless any will do."""
        if self.incarnation:
            self.incarnation = incarnation


def server_info() -> Plan[info.ServerInfo]:
    response = yield from _calls.call(_calls.GET_SERVER_INFO, info_pb.GetServerInfoRequest())
    return info.server_info(response)


def create(spec: SandboxSpec, config: Config) -> Plan[tuple[info.SandboxInfo, bool]]:
    request = create_request(spec)
    request.template = request.template or config.template
    response = yield from _calls.call(_calls.CREATE_SANDBOX, request, config.create_timeout)
    # No other caller has a generated id: what a repeated call finds was made by
    # the call that lost its reply.
    own = not spec.get("sandbox_id")
    return info.sandbox_info(response.sandbox), own or response.created


def get(sandbox_id: str) -> Plan[info.SandboxInfo]:
    request = lifecycle_pb.GetSandboxRequest(sandbox_id=sandbox_id)
    response = yield from _calls.call(_calls.GET_SANDBOX, request)
    return info.sandbox_info(response.sandbox)


def list_page(
    labels: Mapping[str, str] | None,
    states: Sequence[SandboxState],
    page_size: int,
    page_token: str,
) -> Plan[info.SandboxPage]:
    request = lifecycle_pb.ListSandboxesRequest(
        labels=_values.mapping("labels", labels),
        states=[lifecycle_pb.SandboxState.Value(f"SANDBOX_STATE_{s}") for s in states],
        page_size=page_size,
        page_token=page_token,
    )
    response = yield from _calls.call(_calls.LIST_SANDBOXES, request)
    return info.SandboxPage([info.sandbox_info(s) for s in response.sandboxes], response.next_page_token)


def update(
    sandbox_id: str,
    *,
    set_labels: Mapping[str, str] | None,
    remove_labels: Sequence[str],
    ttl: float | None,
    idle_ttl: float | None,
    renew: bool,
    network_allow: Sequence[EgressRule] | None,
) -> Plan[info.SandboxInfo]:
    request = lifecycle_pb.UpdateSandboxRequest(
        sandbox_id=sandbox_id,
        set_labels=_values.mapping("set_labels", set_labels),
        remove_labels=remove_labels,
        ttl=_values.duration(ttl),
        idle_ttl=_values.duration(idle_ttl),
        renew=renew,
    )
    if network_allow is not None:
        request.network.SetInParent()
        request.network.allow.extend(rule.message() for rule in network_allow)
    response = yield from _calls.call(_calls.UPDATE_SANDBOX, request)
    return info.sandbox_info(response.sandbox)


def delete(target: Target) -> Plan[bool]:
    request = lifecycle_pb.DeleteSandboxRequest(
        sandbox_id=target.sandbox_id,
        allow_missing=True,
        expected_incarnation=target.incarnation,
    )
    response = yield from _calls.call(_calls.DELETE_SANDBOX, request)
    return response.deleted


def cleanup(
    max_idle: float | None, labels: Mapping[str, str] | None, *, dry_run: bool
) -> Plan[info.CleanupResult]:
    request = lifecycle_pb.CleanupSandboxesRequest(
        max_idle=_values.duration(max_idle), labels=_values.mapping("labels", labels), dry_run=dry_run
    )
    response = yield from _calls.call(_calls.CLEANUP_SANDBOXES, request)
    return info.CleanupResult(
        deleted=tuple(response.deleted_sandbox_ids),
        kept=response.kept,
        failures={f.sandbox_id: f.message for f in response.failures},
    )


def pool_status(template: str, config: Config) -> Plan[info.PoolStatus]:
    request = lifecycle_pb.GetPoolStatusRequest(template=template or config.template)
    response = yield from _calls.call(_calls.GET_POOL_STATUS, request)
    return info.PoolStatus(response.available, response.active, response.total, response.target)


def suspend(sandbox_id: str, timeout: float) -> Plan[info.SandboxInfo]:
    request = lifecycle_pb.SuspendSandboxRequest(sandbox_id=sandbox_id)
    response = yield from _calls.call(_calls.SUSPEND_SANDBOX, request, timeout)
    return info.sandbox_info(response.sandbox)


def resume(sandbox_id: str, timeout: float) -> Plan[info.SandboxInfo]:
    request = lifecycle_pb.ResumeSandboxRequest(sandbox_id=sandbox_id)
    response = yield from _calls.call(_calls.RESUME_SANDBOX, request, timeout)
    return info.sandbox_info(response.sandbox)


def write_stdin(target: Target, exec_id: str, data: bytes, *, offset: int, eof: bool) -> Plan[int]:
    # At least one message, so that an empty one can carry the end. A command may
    # take less than a message holds: what it took decides what comes next.
    first = offset
    while True:
        start = offset - first
        piece = data[start : start + files.CHUNK_BYTES]
        last = start + len(piece) == len(data)
        request = process_pb.WriteStdinRequest(
            sandbox_id=target.sandbox_id,
            expected_incarnation=target.incarnation,
            exec_id=exec_id,
            offset=offset,
            data=piece,
            eof=eof and last,
        )
        response = yield from _calls.call(_calls.WRITE_STDIN, request)
        # Beyond the piece: an earlier try of the call wrote it, and more.
        taken = min(response.next_offset - offset, len(piece))
        if taken < 0 or (piece and not taken):
            raise InternalError(f"standard input went from offset {offset} to {response.next_offset}")
        if last and taken == len(piece):
            return response.next_offset
        offset += taken


def signal(
    target: Target, exec_id: str, name: str, scope: SignalScope, timeout: float | None = None
) -> Plan[bool]:
    request = process_pb.SignalProcessRequest(
        sandbox_id=target.sandbox_id,
        expected_incarnation=target.incarnation,
        exec_id=exec_id,
        signal=name,
        scope=process_pb.SignalScope.Value(f"SIGNAL_SCOPE_{scope}"),
    )
    response = yield from _calls.call(_calls.SIGNAL_PROCESS, request, timeout)
    return response.delivered


def resize_terminal(target: Target, exec_id: str, rows: int, columns: int) -> Plan[None]:
    request = process_pb.ResizeTerminalRequest(
        sandbox_id=target.sandbox_id,
        expected_incarnation=target.incarnation,
        exec_id=exec_id,
        size=process_pb.TerminalSize(rows=rows, columns=columns),
    )
    yield from _calls.call(_calls.RESIZE_TERMINAL, request)


def processes(target: Target, *, include_ended: bool) -> Plan[list[process.Process]]:
    request = process_pb.ListProcessesRequest(
        sandbox_id=target.sandbox_id,
        expected_incarnation=target.incarnation,
        include_ended=include_ended,
    )
    response = yield from _calls.call(_calls.LIST_PROCESSES, request)
    return [process.process(p) for p in response.processes]


def stat_file(target: Target, path: str) -> Plan[files.FileInfo]:
    request = files_pb.StatFileRequest(
        **target.scope(),
        path=_values.text("path", path),
    )
    response = yield from _calls.call(_calls.STAT_FILE, request)
    return files.file_info(response.info)


def list_directory(target: Target, path: str) -> Plan[list[files.FileInfo]]:
    entries: list[files.FileInfo] = []
    token = ""
    while True:
        request = files_pb.ListDirectoryRequest(
            **target.scope(),
            path=_values.text("path", path),
            page_token=token,
        )
        response = yield from _calls.call(_calls.LIST_DIRECTORY, request)
        entries += [files.file_info(e) for e in response.entries]
        token = response.next_page_token
        if not token:
            return entries


def get_url(
    target: Target, of: int | str, *, method: Literal["GET", "PUT"], ttl: float | None
) -> Plan[info.SandboxUrl]:
    request = url_pb.CreateSandboxUrlRequest(
        sandbox_id=target.sandbox_id, expected_incarnation=target.incarnation, ttl=_values.duration(ttl)
    )
    if isinstance(of, str):
        request.path = _values.text("target", of)
        request.method = url_pb.FileUrlMethod.Value(f"FILE_URL_METHOD_{method}")
        access = target.narrowed()
        if access is not None:
            request.access.CopyFrom(access)
    else:
        request.port = of
    return info.sandbox_url((yield from _calls.call(_calls.CREATE_SANDBOX_URL, request)))


def make_directory(target: Target, path: str, *, parents: bool, mode: int | None) -> Plan[bool]:
    request = files_pb.MakeDirectoryRequest(
        **target.scope(),
        path=_values.text("path", path),
        parents=parents,
        mode=mode,
    )
    response = yield from _calls.call(_calls.MAKE_DIRECTORY, request)
    return response.created


def move_file(target: Target, source: str, destination: str, *, overwrite: bool) -> Plan[None]:
    request = files_pb.MoveFileRequest(
        **target.scope(),
        source=_values.text("source", source),
        destination=_values.text("destination", destination),
        overwrite=overwrite,
    )
    yield from _calls.call(_calls.MOVE_FILE, request)


def remove_file(target: Target, path: str, *, recursive: bool, allow_missing: bool) -> Plan[bool]:
    request = files_pb.RemoveFileRequest(
        **target.scope(),
        path=_values.text("path", path),
        recursive=recursive,
        allow_missing=allow_missing,
    )
    response = yield from _calls.call(_calls.REMOVE_FILE, request)
    return response.removed


def read_lines(
    target: Target, path: str, *, offset: int, limit: int | None, max_bytes: int
) -> Plan[files.Lines]:
    request = files_pb.ReadLinesRequest(
        **target.scope(),
        path=_values.text("path", path),
        offset=offset,
        limit=limit,
        max_bytes=max_bytes,
    )
    response = yield from _calls.call(_calls.READ_LINES, request)
    return files.lines(response)


def write_file(
    target: Target, path: str, content: bytes, *, mode: int | None, create_only: bool
) -> Plan[files.WriteResult]:
    request = files_pb.WriteFileRequest(
        **target.scope(),
        path=_values.text("path", path),
        content=content,
        mode=mode,
        create_only=create_only,
    )
    response = yield from _calls.call(_calls.WRITE_FILE, request)
    return files.WriteResult(response.size, response.sha256, response.created)


def edit_file(
    target: Target, path: str, old: bytes, new: bytes, *, replace_all: bool, allow_empty_old: bool
) -> Plan[files.EditResult]:
    request = files_pb.EditFileRequest(
        **target.scope(),
        path=_values.text("path", path),
        old_text=old,
        new_text=new,
        replace_all=replace_all,
        allow_empty_old=allow_empty_old,
    )
    response = yield from _calls.call(_calls.EDIT_FILE, request)
    return files.EditResult(response.occurrences, response.size)


def search_files(
    target: Target,
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
    timeout: float | None = None,
) -> Plan[files.SearchResult]:
    request = search_pb.SearchFilesRequest(
        **target.scope(),
        pattern=pattern,
        syntax=search_pb.PATTERN_SYNTAX_RE2 if regexp else search_pb.PATTERN_SYNTAX_LITERAL,
        ignore_case=ignore_case,
        path=_values.text("path", path),
        glob=glob,
        exclude_dirs=exclude_dirs,
        max_matches=max_matches,
        max_file_bytes=max_file_bytes,
        context_before=context_before,
        context_after=context_after,
        include_binary=include_binary,
    )
    response = yield from _calls.call(_calls.SEARCH_FILES, request, timeout)
    return files.search_result(response)


def glob_files(
    target: Target,
    path: str,
    pattern: str,
    *,
    shallow: bool = False,
    include_directories: bool = False,
    include_links: bool = False,
    max_results: int = 0,
    timeout: float | None = None,
) -> Plan[files.GlobResult]:
    request = search_pb.GlobFilesRequest(
        **target.scope(),
        pattern=pattern,
        path=_values.text("path", path),
        bare_pattern_shallow=shallow,
        include_directories=include_directories,
        include_links=include_links,
        max_results=max_results,
    )
    response = yield from _calls.call(_calls.GLOB_FILES, request, timeout)
    return files.glob_result(response)
