package files

import (
	"cmp"
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/threads"
)

// locks serialises changes of one file. Its key is directory and name, because every
// replacement changes the inode.
type locks struct {
	mu   sync.Mutex
	held map[fileKey]*fileLock
}

type fileKey struct {
	dev, ino uint64
	name     string
}

type fileLock struct {
	free  chan struct{} // holds a value while the lock is free
	users int
}

func keyOf(loc *paths.Location) (fileKey, error) {
	var st unix.Stat_t
	err := unix.Fstat(loc.FD(), &st)
	return fileKey{dev: st.Dev, ino: st.Ino, name: loc.Name}, err
}

func (k fileKey) compare(other fileKey) int {
	return cmp.Or(cmp.Compare(k.dev, other.dev), cmp.Compare(k.ino, other.ino), cmp.Compare(k.name, other.name))
}

// lock waits for the file's lock. The caller calls unlock exactly once. Others can have
// the slot of ctx while it waits.
func (l *locks) lock(ctx context.Context, loc *paths.Location) (unlock func(), err error) {
	key, err := keyOf(loc)
	if err != nil {
		return nil, err
	}
	return l.lockKey(ctx, key)
}

// lockBoth locks two files, which may be the same. The order of locking is fixed, which
// prevents deadlocks.
func (l *locks) lockBoth(ctx context.Context, a, b *paths.Location) (unlock func(), err error) {
	first, err := keyOf(a)
	if err != nil {
		return nil, err
	}
	second, err := keyOf(b)
	if err != nil {
		return nil, err
	}
	switch c := first.compare(second); {
	case c == 0:
		return l.lockKey(ctx, first)
	case c > 0:
		first, second = second, first
	}
	outer, err := l.lockKey(ctx, first)
	if err != nil {
		return nil, err
	}
	inner, err := l.lockKey(ctx, second)
	if err != nil {
		outer()
		return nil, err
	}
	return func() { inner(); outer() }, nil
}

func (l *locks) lockKey(ctx context.Context, key fileKey) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = make(map[fileKey]*fileLock)
	}
	lock := l.held[key]
	if lock == nil {
		lock = &fileLock{free: make(chan struct{}, 1)}
		lock.free <- struct{}{}
		l.held[key] = lock
	}
	lock.users++
	l.mu.Unlock()

	forget := func() {
		l.mu.Lock()
		if lock.users--; lock.users == 0 {
			delete(l.held, key)
		}
		l.mu.Unlock()
	}
	unlock = func() { lock.free <- struct{}{}; forget() }
	select {
	case <-lock.free:
		return unlock, nil
	default:
	}
	// Whoever has a slot has it for work and not for this wait, so it comes back even
	// while this goroutine holds a lock.
	threads.Of(ctx).Without(func() {
		select {
		case <-lock.free:
		case <-ctx.Done():
			forget()
			unlock, err = nil, context.Cause(ctx)
		}
	})
	return unlock, err
}
