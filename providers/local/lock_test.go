//go:build linux

package local

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"
)

// TestLocks has two lock tables on one directory, as two servers would.
func TestLocks(t *testing.T) {
	dir := t.TempDir()
	tables := []*locks{{dir: dir, held: map[string]*turn{}}, {dir: dir, held: map[string]*turn{}}}
	var holders, most int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			k, err := tables[i%2].acquire(t.Context(), "name")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			holders++
			most = max(most, holders)
			mu.Unlock()
			mu.Lock()
			holders--
			mu.Unlock()
			k.release(i%3 == 0)
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d held the lock at once", most)
	}
	for _, table := range tables {
		if len(table.held) != 0 {
			t.Errorf("left in memory: %v", table.held)
		}
	}
}

func TestLockGivesUp(t *testing.T) {
	dir := t.TempDir()
	one, two := &locks{dir: dir, held: map[string]*turn{}}, &locks{dir: dir, held: map[string]*turn{}}
	k, err := one.acquire(t.Context(), "name")
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	for _, table := range []*locks{one, two} {
		if other, err := table.try("name"); other != nil || err != nil {
			t.Errorf("try: %v, %v", other, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Millisecond, why)
		if _, err := table.acquire(ctx, "name"); !errors.Is(err, why) {
			t.Errorf("acquire: %v", err)
		}
		cancel()
	}
	k.release(true)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if k, err = two.acquire(t.Context(), "name"); err != nil {
		t.Fatal(err)
	}
	k.release(true)
}
