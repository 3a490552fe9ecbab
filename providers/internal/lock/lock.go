// Package lock provides named locks among the goroutines of this process and,
// by a file per name, among processes.
package lock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Table provides one lock per name. The kernel releases the lock of a process
// that dies.
type Table struct {
	dir string

	mu    sync.Mutex
	names map[string]*semaphore
}

// semaphore is one name's lock among the goroutines of this process.
type semaphore struct {
	free  chan struct{} // holds one value while the name is free
	users int
}

// NewTable returns a table whose lock files are in a directory.
func NewTable(dir string) *Table {
	return &Table{dir: dir, names: make(map[string]*semaphore)}
}

// Acquire waits for the lock until the context ends.
func (t *Table) Acquire(ctx context.Context, name string) (*Lock, error) {
	s := t.enter(name)
	select {
	case <-s.free:
	case <-ctx.Done():
		t.leave(name, s)
		return nil, fmt.Errorf("wait for the lock of %s: %w", name, context.Cause(ctx))
	}
	file, err := t.lockFile(ctx, name)
	if err != nil {
		s.free <- struct{}{}
		t.leave(name, s)
		return nil, err
	}
	return &Lock{table: t, name: name, file: file}, nil
}

// Try returns nil if the lock is held.
func (t *Table) Try(name string) (*Lock, error) {
	s := t.enter(name)
	select {
	case <-s.free:
	default:
		t.leave(name, s)
		return nil, nil
	}
	file, err := t.tryFile(name)
	if err != nil || file == nil {
		s.free <- struct{}{}
		t.leave(name, s)
		return nil, err
	}
	return &Lock{table: t, name: name, file: file}, nil
}

func (t *Table) enter(name string) *semaphore {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.names[name]
	if s == nil {
		s = &semaphore{free: make(chan struct{}, 1)}
		s.free <- struct{}{}
		t.names[name] = s
	}
	s.users++
	return s
}

func (t *Table) leave(name string, s *semaphore) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(t.names, name)
	}
}

// lockFile polls while another process holds the lock: a blocking flock could
// not be interrupted when the context ends.
func (t *Table) lockFile(ctx context.Context, name string) (*os.File, error) {
	for {
		file, err := t.tryFile(name)
		if err != nil || file != nil {
			return file, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another server's lock of %s: %w", name, context.Cause(ctx))
		}
	}
}

func (t *Table) tryFile(name string) (*os.File, error) {
	path := filepath.Join(t.dir, name)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if held, err := lockFD(f); held || err != nil {
			_ = f.Close()
			if err != nil {
				err = fmt.Errorf("lock %s: %w", path, err)
			}
			return nil, err
		}
		// The previous holder may have removed the file. A lock on a file without
		// a name excludes no other process.
		locked, err := f.Stat()
		if err == nil {
			var named fs.FileInfo
			if named, err = os.Stat(path); err == nil && os.SameFile(locked, named) {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// Lock is a held lock.
type Lock struct {
	table *Table
	name  string
	file  *os.File // nil after Transfer
}

// Name returns the locked name.
func (l *Lock) Name() string { return l.name }

// Transfer returns the lock for work that outlasts its holder. Release of the
// original then does nothing.
func (l *Lock) Transfer() *Lock {
	moved := *l
	l.file = nil
	return &moved
}

// Release releases the lock. With remove it also deletes the lock file: the name
// is no longer in use.
func (l *Lock) Release(remove bool) {
	if l.file == nil {
		return
	}
	if remove {
		_ = os.Remove(l.file.Name())
	}
	_ = l.file.Close()
	l.table.mu.Lock()
	s := l.table.names[l.name]
	l.table.mu.Unlock()
	s.free <- struct{}{}
	l.table.leave(l.name, s)
}
