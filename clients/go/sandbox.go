package sandgate

import (
	"context"
	"iter"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// ProcessInfo describes one command of a sandbox.
type ProcessInfo = sandboxv1.Process

// Sandbox is a handle of one sandbox. It is safe for concurrent use and holds no
// connection of its own.
type Sandbox struct {
	// Incarnation that every call expects: in any other, calls fail with
	// [ErrSandboxReplaced]. Create and Get set it, and [Sandbox.Resume] changes it.
	// Empty: any. It must not change while calls run.
	Incarnation string

	client  *Client
	id      string
	created *Info
}

// ID returns the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Created returns the sandbox's description from Create or Get, or nil for a handle
// that was made from an id.
func (s *Sandbox) Created() *Info { return s.created }

// Info returns the sandbox's current state. It does not count as activity.
func (s *Sandbox) Info(ctx context.Context) (*Info, error) {
	reply, err := s.client.stub.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: s.id})
	return reply.GetSandbox(), err
}

// Execute runs a command, waits for it and returns its output and exit status. If ctx
// ends, it kills the command and returns the output so far with the error.
func (s *Sandbox) Execute(ctx context.Context, r ExecuteRequest) (*Result, error) {
	process, err := s.Start(ctx, r)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	result := &Result{ExecID: process.ID()}
	for event, err := range process.Events() {
		if err != nil {
			result.Exit = process.Exit()
			return result, err
		}
		result.add(event)
	}
	return result, nil
}

// Start starts a command and returns once it runs. The returned process yields its
// events.
func (s *Sandbox) Start(ctx context.Context, r ExecuteRequest) (*Process, error) {
	request := r.message(s)
	p := newProcess(ctx, s, request.GetExecId(), request.GetFollowUntil(), !request.GetDetach())
	p.stdinOffset = int64(len(request.GetStdin()))
	return p.begin(func(ctx context.Context) (receiver, error) {
		stream, err := s.client.stub.Execute(ctx, request)
		return receive(stream, err)
	})
}

// Attach follows a running or ended command from a position: the number of bytes of
// stdout and stderr together that the caller has. If ctx ends, the command keeps
// running.
func (s *Sandbox) Attach(ctx context.Context, execID string, position int64, until FollowUntil) (*Process, error) {
	p := newProcess(ctx, s, execID, until, false)
	p.position = position
	return p.begin(p.attach)
}

// Signal sends a signal by name, such as "SIGTERM", to a command's leader, group
// or whole tree. It returns false if no process was left to signal.
func (s *Sandbox) Signal(ctx context.Context, execID, signal string, scope SignalScope) (bool, error) {
	reply, err := s.client.stub.SignalProcess(ctx, &sandboxv1.SignalProcessRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, ExecId: execID, Signal: signal, Scope: scope,
	})
	return reply.GetDelivered(), err
}

// Processes returns the running commands, the oldest first. With ended, it includes
// ended commands that are still retained.
func (s *Sandbox) Processes(ctx context.Context, ended bool) ([]*ProcessInfo, error) {
	reply, err := s.client.stub.ListProcesses(ctx, &sandboxv1.ListProcessesRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, IncludeEnded: ended,
	})
	return reply.GetProcesses(), err
}

// Read reads a window of lines of a text file.
func (s *Sandbox) Read(ctx context.Context, path string, r ReadRequest) (*Lines, error) {
	return s.client.stub.ReadLines(ctx, &sandboxv1.ReadLinesRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation,
		Path: path, Offset: r.Offset, Limit: positive(r.Limit), MaxBytes: r.MaxBytes,
	})
}

// Write writes a small file atomically and in one message, and creates its parents.
// For larger files use [Sandbox.UploadFile].
func (s *Sandbox) Write(ctx context.Context, path string, content []byte, r WriteRequest) (*Written, error) {
	return s.client.stub.WriteFile(ctx, &sandboxv1.WriteFileRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation,
		Path: path, Content: content, Mode: r.Mode, CreateOnly: r.CreateOnly,
	})
}

// Edit replaces text in a file, atomically. The old text must occur exactly
// once, unless all is true.
func (s *Sandbox) Edit(ctx context.Context, path, oldText, newText string, all bool, opts ...EditOption) (*Edited, error) {
	request := &sandboxv1.EditFileRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation,
		Path: path, OldText: []byte(oldText), NewText: []byte(newText), ReplaceAll: all,
	}
	for _, opt := range opts {
		opt(request)
	}
	return s.client.stub.EditFile(ctx, request)
}

// List yields the entries of a directory, sorted by name. After an error it ends.
func (s *Sandbox) List(ctx context.Context, path string) iter.Seq2[*FileInfo, error] {
	return func(yield func(*FileInfo, error) bool) {
		request := &sandboxv1.ListDirectoryRequest{SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Path: path}
		for {
			page, err := s.client.stub.ListDirectory(ctx, request)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, entry := range page.GetEntries() {
				if !yield(entry, nil) {
					return
				}
			}
			if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
				return
			}
		}
	}
}

// Glob finds files below a directory by their name.
func (s *Sandbox) Glob(ctx context.Context, path, pattern string, r GlobRequest) (*Globbed, error) {
	return s.client.stub.GlobFiles(ctx, &sandboxv1.GlobFilesRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Path: path, Pattern: pattern,
		BarePatternShallow: r.Shallow, IncludeDirectories: r.IncludeDirectories, IncludeLinks: r.IncludeLinks, MaxResults: r.MaxResults,
	})
}

// Search finds lines that hold a literal text, or match a pattern in RE2 syntax.
func (s *Sandbox) Search(ctx context.Context, path, pattern string, r SearchRequest) (*Searched, error) {
	syntax := sandboxv1.PatternSyntax_PATTERN_SYNTAX_LITERAL
	if r.Regexp {
		syntax = sandboxv1.PatternSyntax_PATTERN_SYNTAX_RE2
	}
	return s.client.stub.SearchFiles(ctx, &sandboxv1.SearchFilesRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Path: path, Pattern: pattern, Syntax: syntax,
		IgnoreCase: r.IgnoreCase, Glob: r.Glob, ExcludeDirs: r.ExcludeDirs, MaxMatches: r.MaxMatches,
		MaxFileBytes: r.MaxFileBytes, ContextBefore: r.ContextBefore, ContextAfter: r.ContextAfter, IncludeBinary: r.IncludeBinary,
	})
}

// Stat describes one file, directory or link, without following it.
func (s *Sandbox) Stat(ctx context.Context, path string) (*FileInfo, error) {
	reply, err := s.client.stub.StatFile(ctx, &sandboxv1.StatFileRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Path: path,
	})
	return reply.GetInfo(), err
}

// MakeDirectory creates a directory and its missing parents. It returns false if the
// directory existed already.
func (s *Sandbox) MakeDirectory(ctx context.Context, path string, opts ...DirectoryOption) (bool, error) {
	request := &sandboxv1.MakeDirectoryRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Path: path, Parents: true,
	}
	for _, opt := range opts {
		opt(request)
	}
	reply, err := s.client.stub.MakeDirectory(ctx, request)
	return reply.GetCreated(), err
}

// Move renames a file or directory within one file system. An existing file is
// replaced only with overwrite.
func (s *Sandbox) Move(ctx context.Context, source, destination string, overwrite bool) error {
	_, err := s.client.stub.MoveFile(ctx, &sandboxv1.MoveFileRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation,
		Source: source, Destination: destination, Overwrite: overwrite,
	})
	return err
}

// Remove removes a file, a link or an empty directory; with recursive, also a
// directory that is not empty.
func (s *Sandbox) Remove(ctx context.Context, path string, recursive bool, opts ...RemoveOption) error {
	request := &sandboxv1.RemoveFileRequest{
		SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Path: path, Recursive: recursive,
	}
	for _, opt := range opts {
		opt(request)
	}
	_, err := s.client.stub.RemoveFile(ctx, request)
	return err
}

// Delete deletes the sandbox and everything in it, in the incarnation that this handle
// expects only. It returns nil if the sandbox does not exist.
func (s *Sandbox) Delete(ctx context.Context) error {
	_, err := s.client.stub.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{
		SandboxId: s.id, AllowMissing: true, ExpectedIncarnation: s.Incarnation,
	})
	return err
}

// Suspend stops its processes and keeps its disk, as far as the provider can. It fails
// with [ErrUnsupported] if the provider cannot suspend.
func (s *Sandbox) Suspend(ctx context.Context) (*Info, error) {
	return s.client.Suspend(ctx, s.id)
}

// Resume resumes the suspended sandbox and returns when a command can run. Without its
// former processes it is a new incarnation, which this handle expects from now on: no
// other call of the handle may run meanwhile.
func (s *Sandbox) Resume(ctx context.Context) (*Info, error) {
	info, err := s.client.Resume(ctx, s.id)
	if err == nil && s.Incarnation != "" {
		s.Incarnation = info.GetIncarnation()
	}
	return info, err
}
