//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

// TestConcurrentCreationsPullAnImageOnce: two servers with 20 creations each pull an image once.
func TestConcurrentCreationsPullAnImageOnce(t *testing.T) {
	r := newRegistry(t)
	img := random(t, 1<<20)
	r.push(t, ":1", img)
	one := storeFrom(t, Registries{})
	other := NewStore(one.dir, lock.NewTable(t.TempDir()), one.log, one.registries.config, nil, one.inUse)
	t.Cleanup(other.Close)
	// Files of locks, not memory, are what two servers share.
	locks := t.TempDir()
	one.locks, other.locks = lock.NewTable(locks), lock.NewTable(locks)
	var creations sync.WaitGroup
	for _, s := range []*Store{one, other} {
		for range 20 {
			creations.Go(func() {
				key, meta, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:1"), "")
				if err != nil || key != keyOf(t, img) || meta == nil {
					t.Errorf("%s, %+v, %v", key, meta, err)
				}
			})
		}
	}
	creations.Wait()
	if all, most := r.requests("blobs"); all != 2 || most != 1 {
		t.Errorf("%d requests for 2 blobs", all)
	}
	if _, most := r.requests("manifests"); most > 2 {
		t.Errorf("%d requests for the manifest by 2 servers", most)
	}
}

// TestTagKeepsItsDigestUnlessThePolicyPullsAgain: a tag means what it meant at its pull, unless the policy asks again.
// A digest always means the same.
func TestTagKeepsItsDigestUnlessThePolicyPullsAgain(t *testing.T) {
	r := newRegistry(t)
	first, second := small(t, "first"), small(t, "second")
	r.push(t, ":1", first)
	s := storeFrom(t, Registries{})
	pull := func(id string, policy Policy, want v1.Image, waits bool) {
		t.Helper()
		ctx, pulled := providers.WithPulls(t.Context())
		if key, _, err := s.Pull(ctx, parse(t, r.host+"/team/app"+id), policy); err != nil || key != keyOf(t, want) || pulled() != waits {
			t.Errorf("%s, %s: %s, %v; it waited for a pull: %v", id, policy, key, err, pulled())
		}
	}
	if _, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:1"), PullNever); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("never: %v", err)
	}
	pinned := "@sha256:" + keyOf(t, first)
	pull(":1", PullMissing, first, true)
	pull(pinned, PullMissing, first, true)
	r.push(t, ":1", second)
	pull(":1", PullMissing, first, false)
	pull(":1", PullAlways, second, true)
	pull(":1", PullMissing, second, false)
	before, _ := r.requests("manifests")
	pull(pinned, PullAlways, first, false)
	pull(":1", PullNever, second, false)
	if after, _ := r.requests("manifests"); after != before {
		t.Errorf("a digest was looked up %d times", after-before)
	}
	r.Close()
	pull(":1", PullMissing, second, false)
	if _, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:1"), PullAlways); !errors.Is(err, providers.ErrUnavailable) {
		t.Errorf("always without the registry: %v", err)
	}
}

// TestPulledImagesAreCollected: an unused image goes with its names, and comes back.
func TestPulledImagesAreCollected(t *testing.T) {
	r := newRegistry(t)
	img := small(t, "good")
	r.push(t, ":1", img)
	s := storeFrom(t, Registries{})
	ref := parse(t, r.host+"/team/app:1")
	key, _, err := s.Pull(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	age := func() {
		t.Helper()
		long := time.Now().Add(-2 * idleTime)
		if err := errors.Join(os.Chtimes(s.metaFile(key), long, long), s.Collect(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	s.inUse = func() (map[string]bool, error) { return map[string]bool{key: true}, nil }
	age()
	if _, meta, err := s.kept(t.Context(), ref); err != nil || meta == nil {
		t.Fatalf("in use: %+v, %v", meta, err)
	}
	s.inUse = func() (map[string]bool, error) { return nil, nil }
	age()
	left, err := filepath.Glob(filepath.Join(s.dir, "[^.]*"))
	names, err2 := filepath.Glob(filepath.Join(s.dir, namesDir, "*"))
	if len(left)+len(names) > 0 || err != nil || err2 != nil {
		t.Errorf("left: %v, %v", left, names)
	}
	if again, _, err := s.Pull(t.Context(), ref, ""); err != nil || again != key {
		t.Errorf("again: %s, %v", again, err)
	}
}

// TestPullOutlivesItsCaller: a creation that gives up leaves the pull to the next one.
// The store's end ends it, and nothing is left.
func TestPullOutlivesItsCaller(t *testing.T) {
	r := newRegistry(t)
	img := random(t, 4<<20)
	r.push(t, ":1", img)
	arrived, open := make(chan struct{}, 100), make(chan struct{})
	r.answer(func(_ http.ResponseWriter, req *http.Request, _ http.Handler) bool {
		if strings.Contains(req.URL.Path, "/blobs/") {
			arrived <- struct{}{}
			select {
			case <-open:
			case <-req.Context().Done():
			}
		}
		return false
	})
	s := storeFrom(t, Registries{})
	ref := parse(t, r.host+"/team/app:1")
	errGaveUp := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan error)
	go func() {
		_, _, err := s.Pull(ctx, ref, "")
		first <- err
	}()
	<-arrived
	if text := s.Progress(ref); text != "pulling "+r.host+"/team/app:1: 0 of 5 MiB" {
		t.Errorf("progress: %q", text)
	}
	cancel(errGaveUp)
	if err := <-first; !errors.Is(err, errGaveUp) || !strings.Contains(err.Error(), "pulling") {
		t.Errorf("%v", err)
	}
	second := make(chan error)
	go func() {
		_, _, err := s.Pull(t.Context(), ref, "")
		second <- err
	}()
	close(open)
	if err := <-second; err != nil {
		t.Error(err)
	}
	if _, most := r.requests("blobs"); most != 1 || s.Progress(ref) != "" {
		t.Errorf("%d requests for a blob, %q", most, s.Progress(ref))
	}

	stopped := storeFrom(t, Registries{})
	open = make(chan struct{})
	go func() {
		_, _, err := stopped.Pull(t.Context(), ref, "")
		first <- err
	}()
	<-arrived
	stopped.Close()
	if err := <-first; !errors.Is(err, errClosed) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(stopped.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestPullsWaitForTheirTurn: no more than maxPulls run at once; the others report that
// they wait, and end with the store if their turn does not come.
func TestPullsWaitForTheirTurn(t *testing.T) {
	const waiting = 2
	r := newRegistry(t)
	for i := range maxPulls + waiting {
		r.push(t, ":"+strconv.Itoa(i), small(t, strconv.Itoa(i)))
	}
	arrived, open := make(chan struct{}, maxPulls+waiting), make(chan struct{})
	r.answer(func(_ http.ResponseWriter, req *http.Request, _ http.Handler) bool {
		if strings.Contains(req.URL.Path, "/manifests/") {
			arrived <- struct{}{}
			select {
			case <-open:
			case <-req.Context().Done():
			}
		}
		return false
	})
	ref := func(i int) Reference { return parse(t, r.host+"/team/app:"+strconv.Itoa(i)) }
	for _, closes := range []bool{false, true} {
		s := storeFrom(t, Registries{})
		var pulls sync.WaitGroup
		errs := make([]error, maxPulls+waiting)
		start := func(i int) {
			p := s.join(ref(i))
			pulls.Go(func() {
				<-p.ended
				errs[i] = p.err
			})
		}
		for i := range maxPulls {
			start(i)
			<-arrived
		}
		for i := range waiting {
			start(maxPulls + i)
		}
		for i := range waiting {
			want := fmt.Sprintf("waiting to pull %s/team/app:%d: this server pulls %d other images", r.host, maxPulls+i, maxPulls)
			for s.Progress(ref(maxPulls+i)) != want {
				runtime.Gosched() // until its goroutine has tried
			}
		}
		if len(arrived) > 0 {
			t.Errorf("%d more pulls run", len(arrived))
		}
		if closes {
			s.Close()
			pulls.Wait()
			for i, err := range errs {
				if !errors.Is(err, errClosed) {
					t.Errorf("pull %d: %v", i, err)
				}
			}
			continue
		}
		close(open)
		pulls.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		for range waiting {
			<-arrived
		}
		open = make(chan struct{})
	}
}
