"""The words of deepagents' contract: result objects, error codes, messages."""

from __future__ import annotations

import dataclasses
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deepagents.backends.protocol import FILE_NOT_FOUND, INVALID_PATH, IS_DIRECTORY, PERMISSION_DENIED

from sandgate.errors import SandboxReplacedError

if TYPE_CHECKING:
    from sandgate.errors import SandgateError

D = TypeVar("D")

EMPTY_FILE: Final = "System reminder: File exists but has empty contents"
EMPTY_OLD_STRING: Final = "Error: old_string cannot be empty. Provide the exact text to replace."
GREP_TIMEOUT: Final = 35.0
GLOB_TIMEOUT: Final = 30.0

# What deepagents never decodes as text, whatever is in it.
_BINARY_SUFFIXES: Final = frozenset(
    {
        *(".png", ".jpeg", ".jpg", ".webp", ".gif", ".heic", ".heif"),
        *(".mp4", ".mpeg", ".mov", ".avi", ".flv", ".mpg", ".webm", ".wmv", ".3gpp", ".mkv"),
        *(".wav", ".mp3", ".aiff", ".aac", ".ogg", ".flac"),
        *(".pdf", ".ppt", ".pptx"),
    }
)

_CODES: Final = {
    "FILE_NOT_FOUND": FILE_NOT_FOUND,
    "FILE_PERMISSION_DENIED": PERMISSION_DENIED,
    "FILE_READ_ONLY": PERMISSION_DENIED,
    "POLICY_DENIED": PERMISSION_DENIED,
    "FILE_IS_DIRECTORY": IS_DIRECTORY,
    "PATH_INVALID": INVALID_PATH,
    "FILE_NOT_DIRECTORY": INVALID_PATH,
    "FILE_NOT_REGULAR": INVALID_PATH,
}

# Reasons that speak of a file or a pattern. Everything else is the transport's
# or of the sandbox itself, and must never look like a missing file.
_OF_FILES: Final = frozenset(
    {*_CODES, "PATTERN_INVALID", "REQUEST_INVALID", "MESSAGE_TOO_LARGE", "DIRECTORY_NOT_EMPTY", "DISK_FULL"}
)

_READ_ERRORS: Final = {
    "FILE_NOT_FOUND": "file_not_found",
    "FILE_PERMISSION_DENIED": "permission_denied",
    "POLICY_DENIED": "permission_denied",
    "FILE_IS_DIRECTORY": "not_a_file",
    "FILE_NOT_REGULAR": "not_a_file",
    "FILE_NOT_DIRECTORY": "file_not_found",
    "PATH_INVALID": "invalid_path",
}

_WALK_ERRORS: Final = {
    "FILE_NOT_FOUND": "path_not_found",
    "FILE_NOT_DIRECTORY": "not_a_directory",
    "FILE_PERMISSION_DENIED": "permission_denied",
    "POLICY_DENIED": "permission_denied",
    "PATH_INVALID": "invalid_path",
}


def build(kind: type[D], **values: Any) -> D:
    """Make a result object of whatever deepagents version is installed.

    Fields that this version does not have are left out.
    """
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def is_binary(path: str) -> bool:
    """Return whether deepagents treats a file of this name as binary."""
    return PurePosixPath(path).suffix.lower() in _BINARY_SUFFIXES


def is_about_file(error: SandgateError) -> bool:
    """Return whether an error is about a file or pattern, not the infrastructure."""
    return error.reason in _OF_FILES or error.reason.startswith(("FILE_", "EDIT_"))


def transfer_error(error: SandgateError) -> str:
    """Return the code for upload and download, or a text where there is none."""
    return _CODES.get(error.reason) or describe(error)


def change_error(error: SandgateError) -> str:
    """Return why a change failed, and say so where it was a policy that refused it."""
    if error.reason == "POLICY_DENIED":
        return f"{PERMISSION_DENIED}: {error.message}"
    return transfer_error(error)


def read_error(path: str, error: SandgateError) -> str:
    """Return the message of a failed read."""
    return f"File '{path}': {_READ_ERRORS.get(error.reason) or describe(error)}"


def walk_error(path: str, error: SandgateError) -> str:
    """Return the message of a failed listing or search."""
    return f"Path '{path}': {_WALK_ERRORS.get(error.reason) or describe(error)}"


def edit_error(path: str, old: str, error: SandgateError) -> str:
    """Return the message of a failed edit."""
    several = (
        f"Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
    )
    denied = f"Error: Permission denied editing file '{path}'"
    refused = f"{denied}: {error.message}"
    missing = f"Error: File '{path}' not found"
    irregular = f"Error: '{path}' is not a regular file"
    messages = {
        "FILE_NOT_FOUND": missing,
        "FILE_NOT_DIRECTORY": missing,
        "FILE_PERMISSION_DENIED": denied,
        "FILE_READ_ONLY": denied,
        "POLICY_DENIED": refused,
        "FILE_IS_DIRECTORY": irregular,
        "FILE_NOT_REGULAR": irregular,
        "FILE_NOT_TEXT": f"Error: File '{path}' is not a text file",
        "EDIT_TEXT_NOT_FOUND": f"Error: String not found in file: '{old}'",
        "EDIT_NOT_UNIQUE": several,
    }
    return messages.get(error.reason) or f"Error editing file '{path}': {transfer_error(error)}"


def describe(error: SandgateError) -> str:
    """Return an error as one line for a model."""
    if isinstance(error, SandboxReplacedError):
        return error.message
    return f"{type(error).__name__}: {error}"


def truncation_reason(reason: str) -> str:
    """Return deepagents' word for why a result is not whole."""
    return "unreadable" if reason == "UNREADABLE" else "budget"
