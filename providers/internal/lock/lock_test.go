//go:build linux

package lock

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"
)

// TestTwoTablesShareTheLocksOfADirectory has two lock tables on one directory, as two servers would.
func TestTwoTablesShareTheLocksOfADirectory(t *testing.T) {
	dir := t.TempDir()
	tables := []*Table{NewTable(dir), NewTable(dir)}
	var holders, most int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			k, err := tables[i%2].Acquire(t.Context(), "name")
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
			k.Release(i%3 == 0)
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d held the lock at once", most)
	}
	for _, table := range tables {
		if len(table.names) != 0 {
			t.Errorf("left in memory: %v", table.names)
		}
	}
}

func TestLockGivesUp(t *testing.T) {
	dir := t.TempDir()
	one, two := NewTable(dir), NewTable(dir)
	k, err := one.Acquire(t.Context(), "name")
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	for _, table := range []*Table{one, two} {
		if other, err := table.Try("name"); other != nil || err != nil {
			t.Errorf("try: %v, %v", other, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Millisecond, why)
		if _, err := table.Acquire(ctx, "name"); !errors.Is(err, why) {
			t.Errorf("acquire: %v", err)
		}
		cancel()
	}
	k.Release(true)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if k, err = two.Acquire(t.Context(), "name"); err != nil {
		t.Fatal(err)
	}
	k.Release(true)
}
