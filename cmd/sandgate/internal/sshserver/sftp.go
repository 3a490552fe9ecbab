package sshserver

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/pkg/sftp"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// sftp serves the SFTP subsystem by the gateway's file calls.
func (s *session) sftp() {
	close(s.ready) // there is no command
	reads, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	f := &files{
		sandbox: s.conn.sandbox, ctx: s.ctx, reads: reads, slots: s.conn.files,
		explain: s.notice, writers: map[string]*writer{},
	}
	server := sftp.NewRequestServer(newPackets(s.channel, cancel), sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f},
		sftp.WithStartDirectory(s.conn.home))
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		s.conn.log.Info("SFTP ended", "error", err)
	}
	s.status(0)
}

// files handles the requests of one SFTP session.
type files struct {
	sandbox *sandgate.Sandbox
	ctx     context.Context //nolint:containedctx // As of the session.
	reads   context.Context //nolint:containedctx // As ctx; ends with the input, too.
	slots   chan struct{}

	telling sync.Mutex
	explain func(string) // prints a line for the user

	mu      sync.Mutex
	writers map[string]*writer // by path
}

var (
	_ sftp.FileReader           = (*files)(nil)
	_ sftp.FileWriter           = (*files)(nil)
	_ sftp.PosixRenameFileCmder = (*files)(nil)
	_ sftp.LstatFileLister      = (*files)(nil)
	_ sftp.ReadlinkFileLister   = (*files)(nil)
)

var errTooManyFiles = errors.New("the connection has too many open files")

// statusError is an error with the code that SFTP has for it.
type statusError struct {
	cause error
	code  error // of package sftp
}

func (e *statusError) Error() string   { return e.cause.Error() }
func (e *statusError) Unwrap() []error { return []error{e.code, e.cause} }

func unsupported(text string) error {
	return &statusError{errors.New(text), sftp.ErrSSHFxOpUnsupported}
}

// reply returns the error for the client. SFTP has few codes, and OpenSSH shows nothing
// but the code: the user reads the others on standard error.
func (f *files) reply(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandgate.ErrFileNotFound):
		return &statusError{err, sftp.ErrSSHFxNoSuchFile}
	case errors.Is(err, sandgate.ErrFilePermissionDenied), errors.Is(err, sandgate.ErrPermissionDenied):
		return &statusError{err, sftp.ErrSSHFxPermissionDenied}
	case errors.Is(err, sandgate.ErrFileAlreadyExists), errors.Is(err, sandgate.ErrFileNotDirectory), f.reads.Err() != nil:
		// Clients try first and look then.
		return err
	}
	f.telling.Lock()
	defer f.telling.Unlock()
	f.explain(err.Error())
	return err
}

// Fileread opens a file for reading.
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if !take(f.slots) {
		return nil, f.reply(errTooManyFiles)
	}
	file, err := f.open(r.Filepath)
	if err != nil {
		release(f.slots)
		return nil, f.reply(err)
	}
	return file, nil
}

// Filewrite opens a file for writing, also if the client wants to read it, too: some do
// for every file that they write. Reading it then fails.
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	if !take(f.slots) {
		return nil, f.reply(errTooManyFiles)
	}
	file, err := f.create(r)
	if err != nil {
		release(f.slots)
		return nil, f.reply(err)
	}
	return file, nil
}
