package sandgate

import sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"

// EditOption changes what [Sandbox.Edit] takes.
type EditOption func(*sandboxv1.EditFileRequest)

// AllowEmptyOld lets an empty old text fill an empty file, as one occurrence. In
// other files it fails. Default: an empty old text fails with
// [ErrInvalidRequest].
func AllowEmptyOld() EditOption {
	return func(r *sandboxv1.EditFileRequest) { r.AllowEmptyOld = true }
}

// DirectoryOption changes what [Sandbox.MakeDirectory] makes.
type DirectoryOption func(*sandboxv1.MakeDirectoryRequest)

// DirectoryMode sets the directory's permission bits. Default: 0755.
func DirectoryMode(mode uint32) DirectoryOption {
	return func(r *sandboxv1.MakeDirectoryRequest) { r.Mode = &mode }
}

// WithoutParents makes the directory alone: without its parent that fails with
// [ErrFileNotFound], and where it is there already with [ErrFileAlreadyExists].
func WithoutParents() DirectoryOption {
	return func(r *sandboxv1.MakeDirectoryRequest) { r.Parents = false }
}

// RemoveOption changes what [Sandbox.Remove] takes.
type RemoveOption func(*sandboxv1.RemoveFileRequest)

// AllowMissing makes a path that is not there no error. Default: it fails with
// [ErrFileNotFound].
func AllowMissing() RemoveOption {
	return func(r *sandboxv1.RemoveFileRequest) { r.AllowMissing = true }
}
