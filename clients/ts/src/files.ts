/** Files: their metadata, and the options and results of file calls. */

import type { CallOptions } from "./call.js";
import { errorFromFile, type SandgateError } from "./errors.js";
import { ErrorReason } from "./gen/sandbox/v1/sandbox_errors_pb.js";
import {
  type FileError as FileErrorMessage,
  type FileInfo as FileInfoMessage,
  FileType as FileTypeValue,
  type ReadLinesResponse,
} from "./gen/sandbox/v1/sandbox_files_pb.js";
import {
  type GlobFilesResponse,
  type SearchFilesResponse,
  TruncationReason as TruncationReasonValue,
} from "./gen/sandbox/v1/sandbox_search_pb.js";
import { date, defined } from "./values.js";

/** The kind of a file. OTHER: a socket, pipe or device. */
export type FileType = "UNSPECIFIED" | "REGULAR" | "DIRECTORY" | "SYMLINK" | "OTHER";

/** Why a result is not whole. */
export type TruncationReason = "UNSPECIFIED" | "COUNT" | "TIME" | "UNREADABLE";

/**
 * Content to upload. A stream is read to its end, once; a function opens one from
 * the beginning, again if need be, such as `() => createReadStream(path)`.
 */
export type Source = Uint8Array | string | AsyncIterable<Uint8Array> | (() => AsyncIterable<Uint8Array>);

/** A file, not following a link at its name. */
export interface FileInfo {
  /** Absolute path. */
  path: string;
  type: FileType;
  /** Size in bytes; of a link, the length of its target. */
  size: number;
  /** Permission bits, such as 0o644. */
  mode: number;
  modifyTime?: Date;
  /** Where a link points to, as it is written there. */
  symlinkTarget: string;
  /** Type of what a link points to; UNSPECIFIED for a dangling one. */
  targetType: FileType;
}

/** How a file is written. */
export interface WriteOptions {
  /** Permission bits. Default: those of the file that is replaced, 0o644 for a new one. */
  mode?: number;
  /** True: an existing file is not replaced but is FILE_ALREADY_EXISTS. Default: false. */
  createOnly?: boolean;
}

/** One file of an upload. */
export interface UploadFile extends WriteOptions {
  /** Absolute path in the sandbox; parents are created. */
  path: string;
  source: Source;
  /** Called after each chunk: how many bytes of the file are done. */
  progress?: (done: number) => void;
}

/** How one file is written and how long that may take. */
export interface UploadOptions extends WriteOptions, CallOptions, Pick<UploadFile, "progress"> {}

/** What became of one uploaded file. */
export interface UploadResult {
  path: string;
  size: number;
  /** 32 bytes. */
  sha256: Uint8Array;
  /** Set when the file was not written; it is then as it was before. */
  error?: SandgateError;
}

/** What became of one downloaded file. */
export interface DownloadResult {
  path: string;
  content: Uint8Array;
  /** The file as it was when it was opened. */
  info?: FileInfo;
  /** Set when the file could not be read; `content` is empty then. */
  error?: SandgateError;
}

/** A part of a file, and how it is fetched. */
export interface DownloadOptions extends CallOptions {
  /** Bytes to skip. Default: 0. */
  offset?: number;
  /** At most this many bytes. Default: to the end. */
  limit?: number;
  /** Called after each chunk: how many bytes are done, and how many there are. */
  progress?: (done: number, size: number) => void;
}

/** A window of lines to read. */
export interface ReadOptions {
  /** Lines to skip. Default: 0. */
  offset?: number;
  /** At most this many lines. Default: no limit but `maxBytes`. */
  limit?: number;
  /** At most this many bytes of content, cut at a line's end where one fits. Default: 512 000. */
  maxBytes?: number;
}

/** A window of lines of a text file. */
export interface Lines {
  /** The lines joined by "\n", without one after the last. Empty when it is not text. */
  content: string;
  /** False when the file is not UTF-8 text: download it. */
  text: boolean;
  /** From 1; 0: no line. */
  startLine: number;
  endLine: number;
  /** Undefined when the file was not read to its end. */
  totalLines?: number;
  /** True when lines follow after `endLine`. */
  more: boolean;
  /** True when `maxBytes` cut the content before `limit` did. */
  truncated: boolean;
  /** Size of the file in bytes. */
  size: number;
}

/** A file that was written. */
export interface WriteResult {
  size: number;
  /** 32 bytes. */
  sha256: Uint8Array;
  /** False when a file was replaced. */
  created: boolean;
}

/** How text in a file is replaced. */
export interface EditOptions {
  /** True: every occurrence. False: there must be exactly one. Default: false. */
  replaceAll?: boolean;
  /** True: an empty old text fills an empty file. Default: false. */
  allowEmptyOld?: boolean;
}

/** A file that was edited. */
export interface EditResult {
  /** How many occurrences were replaced, at least 1. */
  occurrences: number;
  /** Size of the file now. */
  size: number;
}

/** How lines are searched. */
export interface SearchOptions {
  /** True: the pattern is in RE2 syntax. Default: a literal text. */
  regexp?: boolean;
  /** Default: false. */
  ignoreCase?: boolean;
  /** Only files that match: without "/", the name at any depth. Default: all. */
  glob?: string;
  /** Names of directories to skip at any depth. */
  excludeDirs?: string[];
  /** Default and most: 10 000. */
  maxMatches?: number;
  /** Larger files are skipped, in bytes. Default: no limit. */
  maxFileBytes?: number;
  /** Lines of context before each match, at most 20. Default: 0. */
  contextBefore?: number;
  /** Lines of context after each match, at most 20. Default: 0. */
  contextAfter?: number;
  /** True: files with NUL bytes are searched too. Default: false. */
  includeBinary?: boolean;
}

/** One matching line. */
export interface SearchMatch {
  path: string;
  /** From 1. */
  line: number;
  /** The line without its end, cut after 64 KiB; broken UTF-8 becomes U+FFFD. */
  text: string;
  before: string[];
  after: string[];
}

/** Matching lines, by path, then line. */
export interface SearchResult {
  matches: SearchMatch[];
  truncated: boolean;
  truncationReason: TruncationReason;
  /** Regular files that were looked into. */
  filesSearched: number;
}

/** What a glob finds beside regular files at any depth. */
export interface GlobOptions {
  /** True: a pattern without "/" matches only directly in the directory. Default: false. */
  shallow?: boolean;
  /** True: directories are listed too. Default: false. */
  includeDirectories?: boolean;
  /** True: links to files count as files. Default: false. */
  includeLinks?: boolean;
  /** Default and most: 10 000. */
  maxResults?: number;
}

/** Files by name, sorted by path. */
export interface GlobResult {
  files: FileInfo[];
  truncated: boolean;
  truncationReason: TruncationReason;
}

/** The plain form of a file's description. */
export function fileInfo(message: FileInfoMessage): FileInfo {
  return defined({
    path: message.path,
    type: (FileTypeValue[message.type] ?? "UNSPECIFIED") as FileType,
    size: Number(message.size),
    mode: message.mode,
    modifyTime: date(message.modifyTime),
    symlinkTarget: message.symlinkTarget,
    targetType: (FileTypeValue[message.targetType] ?? "UNSPECIFIED") as FileType,
  }) as FileInfo;
}

/** The plain form of a window of lines. */
export function lines(message: ReadLinesResponse): Lines {
  return defined({
    content: text(message.content),
    text: message.text,
    startLine: Number(message.startLine),
    endLine: Number(message.endLine),
    totalLines: message.totalLines === undefined ? undefined : Number(message.totalLines),
    more: message.more,
    truncated: message.truncated,
    size: Number(message.size),
  }) as Lines;
}

/** The plain form of what a search found. */
export function searchResult(message: SearchFilesResponse): SearchResult {
  return {
    matches: message.matches.map((match) => ({
      path: match.path,
      line: Number(match.line),
      text: text(match.text),
      before: match.before.map(text),
      after: match.after.map(text),
    })),
    truncated: message.truncated,
    truncationReason: truncation(message.truncationReason),
    filesSearched: Number(message.filesSearched),
  };
}

/** The plain form of what a glob found. */
export function globResult(message: GlobFilesResponse): GlobResult {
  return {
    files: message.files.map(fileInfo),
    truncated: message.truncated,
    truncationReason: truncation(message.truncationReason),
  };
}

/** The error of one file of several. */
export function fileError(path: string, message: FileErrorMessage): SandgateError {
  const reason = ErrorReason[message.reason];
  return errorFromFile(path, reason === undefined || reason === "UNSPECIFIED" ? "" : reason, message.message);
}

function truncation(reason: TruncationReasonValue): TruncationReason {
  return (TruncationReasonValue[reason] ?? "UNSPECIFIED") as TruncationReason;
}

function text(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}
