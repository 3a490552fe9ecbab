package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// locks hands out one lock per name, among the goroutines of this process and,
// by a file, among processes. The file goes when its holder dies.
type locks struct {
	dir string

	mu   sync.Mutex
	held map[string]*turn
}

type turn struct {
	token chan struct{} // holds one value while the name is free
	users int
}

type lock struct {
	owner *locks
	name  string
	file  *os.File
	lent  bool // work that outlasts the holder gives it back
}

// acquire waits for the lock until the context ends.
func (l *locks) acquire(ctx context.Context, name string) (*lock, error) {
	t := l.enter(name)
	select {
	case <-t.token:
	case <-ctx.Done():
		l.leave(name, t)
		return nil, fmt.Errorf("wait for the lock of %s: %w", name, context.Cause(ctx))
	}
	file, err := l.lockFile(ctx, name)
	if err != nil {
		t.token <- struct{}{}
		l.leave(name, t)
		return nil, err
	}
	return &lock{owner: l, name: name, file: file}, nil
}

// try returns nil when somebody else holds the lock.
func (l *locks) try(name string) (*lock, error) {
	t := l.enter(name)
	select {
	case <-t.token:
	default:
		l.leave(name, t)
		return nil, nil
	}
	file, err := l.tryFile(name)
	if err != nil || file == nil {
		t.token <- struct{}{}
		l.leave(name, t)
		return nil, err
	}
	return &lock{owner: l, name: name, file: file}, nil
}

// attempt is try for those who may also wait.
func (l *locks) attempt(_ context.Context, name string) (*lock, error) { return l.try(name) }

func (l *locks) enter(name string) *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.held[name]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		t.token <- struct{}{}
		l.held[name] = t
	}
	t.users++
	return t
}

func (l *locks) leave(name string, t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(l.held, name)
	}
}

// lockFile waits for another process in small steps: a blocking flock could not
// be given up when the context ends.
func (l *locks) lockFile(ctx context.Context, name string) (*os.File, error) {
	for {
		file, err := l.tryFile(name)
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

func (l *locks) tryFile(name string) (*os.File, error) {
	path := filepath.Join(l.dir, name)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, nil
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// The holder before may have removed the file: a lock on a file without
		// a name excludes nobody.
		mine, err := f.Stat()
		if err == nil {
			var there fs.FileInfo
			if there, err = os.Stat(path); err == nil && os.SameFile(mine, there) {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// release gives the lock back. With forget the name is not in use any more and
// its file goes.
func (k *lock) release(forget bool) {
	if !k.lent {
		k.give(forget)
	}
}

// give is release by whom the lock was lent to.
func (k *lock) give(forget bool) {
	if forget {
		_ = os.Remove(k.file.Name())
	}
	_ = k.file.Close()
	k.owner.mu.Lock()
	t := k.owner.held[k.name]
	k.owner.mu.Unlock()
	t.token <- struct{}{}
	k.owner.leave(k.name, t)
}
