// Package ledger keeps small documents in a directory that several servers share, and
// has one of the servers lead. A provider with such a directory embeds a Directory.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

// Directory keeps each document in a file, and changes it under a lock.
type Directory struct {
	dir   string
	locks *lock.Table
}

// extension is that of the documents' files.
const extension = ".json"

// Open returns the documents of a directory, which it creates if it is missing. It
// deletes the files that killed servers were writing.
func Open(dir string) (*Directory, error) {
	locks := filepath.Join(dir, "locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, err
	}
	d := &Directory{dir: dir, locks: lock.NewTable(locks)}
	if err := d.sweep(); err != nil {
		return nil, fmt.Errorf("files that a killed server was writing: %w", err)
	}
	return d, nil
}

// sweep deletes unfinished files. Those of a document that another server changes now
// stay until a later start.
func (d *Directory) sweep() error {
	unfinished, err := atomicfile.Unfinished(d.dir)
	if err != nil {
		return err
	}
	for file, paths := range unfinished {
		if name, ok := strings.CutSuffix(file, extension); ok {
			err = errors.Join(err, d.remove(name, paths))
		}
	}
	return err
}

// remove deletes unfinished files of a document, unless it is being changed.
func (d *Directory) remove(name string, paths []string) error {
	held, err := d.locks.Try(name)
	if err != nil || held == nil {
		return err
	}
	defer held.Release(false)
	for _, path := range paths {
		if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// leaderLock is the lock that the leader holds. No document has its name.
const leaderLock = ".leader"

// leadInterval is the time between two attempts to become the leader.
const leadInterval = time.Second

// Lead is providers.Coordinator's method. The kernel ends the leadership of a process
// that dies.
func (d *Directory) Lead(ctx context.Context, do func(context.Context)) {
	for ctx.Err() == nil {
		// A lock that cannot be opened may be later: descriptors or space may be lacking.
		if held, err := d.locks.Try(leaderLock); err == nil && held != nil {
			lead(ctx, held, do)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(leadInterval):
		}
	}
}

func lead(ctx context.Context, held *lock.Lock, do func(context.Context)) {
	defer held.Release(false)
	do(ctx)
}

// Lapses is providers.Coordinator's method: the kernel releases no lock of a process that
// lives.
func (*Directory) Lapses() bool { return false }

// ChangeLedger is providers.Ledger's method. A power cut may lose the last changes.
func (d *Directory) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ledger %s: %w", name, context.Cause(ctx))
	}
	held, err := d.locks.Acquire(ctx, name)
	if err != nil {
		return err
	}
	defer held.Release(false)
	path := filepath.Join(d.dir, name+extension)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now, err := change(old)
	if err != nil || now == nil {
		return err
	}
	if err := atomicfile.Write(path, now); err != nil {
		return fmt.Errorf("ledger %s: %w", name, err)
	}
	return nil
}
