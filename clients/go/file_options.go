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
