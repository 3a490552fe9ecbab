package sandgate

import sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"

// EditOption changes what [Sandbox.Edit] accepts.
type EditOption func(*sandboxv1.EditFileRequest)

// AllowEmptyOld lets an empty old text fill an empty file, as one occurrence. In
// other files it fails. Default: an empty old text fails with
// [ErrInvalidRequest].
func AllowEmptyOld() EditOption {
	return func(r *sandboxv1.EditFileRequest) { r.AllowEmptyOld = true }
}

// DirectoryOption changes how [Sandbox.MakeDirectory] creates.
type DirectoryOption func(*sandboxv1.MakeDirectoryRequest)

// DirectoryMode sets the directory's permission bits. Default: 0755.
func DirectoryMode(mode uint32) DirectoryOption {
	return func(r *sandboxv1.MakeDirectoryRequest) { r.Mode = &mode }
}

// WithoutParents creates only the directory itself: the call fails with
// [ErrFileNotFound] if the parent is missing, and with [ErrFileAlreadyExists] if the
// directory exists.
func WithoutParents() DirectoryOption {
	return func(r *sandboxv1.MakeDirectoryRequest) { r.Parents = false }
}

// RemoveOption changes how [Sandbox.Remove] removes.
type RemoveOption func(*sandboxv1.RemoveFileRequest)

// AllowMissing makes Remove succeed if the path does not exist. Default: it fails with
// [ErrFileNotFound].
func AllowMissing() RemoveOption {
	return func(r *sandboxv1.RemoveFileRequest) { r.AllowMissing = true }
}

// DownloadOption selects a part of the file for [Sandbox.DownloadFile].
type DownloadOption func(*download)

// DownloadOffset skips the first bytes of the file. Beyond its end there are none.
func DownloadOffset(bytes int64) DownloadOption {
	return func(d *download) { d.start = bytes }
}

// DownloadLimit ends the download after this many bytes. With 0 it only describes the
// file: unlike [Sandbox.Stat], it follows a link. Default: the rest of the file.
func DownloadLimit(bytes int64) DownloadOption {
	return func(d *download) { d.limit = &bytes }
}
