//go:build linux

package image

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// layered is an image of n layers that do not compress, each with a file of its own and
// the next version of a common one. It also returns what they unpack to, and the digests
// of the layers.
func layered(t *testing.T, n, size int) (img v1.Image, want map[string]string, digests []string) {
	t.Helper()
	want = make(map[string]string)
	var layers [][]byte
	for i := range n {
		data := make([]byte, size)
		if _, err := rand.Read(data); err != nil {
			t.Fatal(err)
		}
		own, version := fmt.Sprintf("own%d", i), fmt.Sprint(i)
		want[own], want["common"] = string(data), version
		layers = append(layers, makeTar(t, tarEntry{name: own, data: string(data)}, tarEntry{name: "common", data: version}))
	}
	img = imageOf(t, layers...)
	all, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest.String())
	}
	return img, want, digests
}

// layerGate counts the layers that a registry sends, and holds them back if open is not
// closed. arrived has the index of each.
type layerGate struct {
	arrived chan int
	open    chan struct{}

	mu            sync.Mutex
	running, most int
}

func gate(r *testRegistry, digests []string) *layerGate {
	g := &layerGate{arrived: make(chan int, len(digests)), open: make(chan struct{})}
	r.answer(func(w http.ResponseWriter, req *http.Request, next http.Handler) bool {
		i := slices.Index(digests, path.Base(req.URL.Path))
		if i < 0 {
			return false
		}
		g.add(1)
		g.arrived <- i
		<-g.open
		// It ends for the client with its last byte.
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, req)
		g.add(-1)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
		return true
	})
	return g
}

func (g *layerGate) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running += n
	g.most = max(g.most, g.running)
}

// TestLayersAreFetchedAtOnce: maxFetches layers arrive at once, and the result is that of
// one after the other.
func TestLayersAreFetchedAtOnce(t *testing.T) {
	const layers = maxFetches + 4
	r := newRegistry(t)
	img, want, digests := layered(t, layers, 300_000)
	r.push(t, ":1", img)
	g := gate(r, digests)
	s := storeFrom(t, Registries{})
	p := s.join(parse(t, r.host+"/team/app:1"))
	seen := make(map[int]bool)
	for range maxFetches {
		seen[<-g.arrived] = true
	}
	if !seen[0] || len(seen) != maxFetches || len(g.arrived) > 0 {
		t.Errorf("layers %v are fetched, and %d more", seen, len(g.arrived))
	}
	// A layer that ends makes place for the next, whether or not its turn has come.
	for range layers - maxFetches {
		g.open <- struct{}{}
		<-g.arrived
	}
	close(g.open)
	<-p.ended
	if p.err != nil {
		t.Fatal(p.err)
	}
	if most := g.most; most > maxFetches {
		t.Errorf("%d layers were fetched at once", most)
	}
	if all, most := r.requests("blobs"); all != layers+1 || most != 1 {
		t.Errorf("%d requests for %d blobs, %d for one of them", all, layers+1, most)
	}
	if diff := cmp.Diff(want, tree(t, s.Root(p.key))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if done, total := p.done.Load(), p.total.Load(); done != total {
		t.Errorf("the progress ends at %d of %d bytes", done, total)
	}
	if left, err := os.ReadDir(s.image(p.key)); err != nil || len(left) != 2 {
		t.Errorf("beside its files and metadata: %v, %v", left, err)
	}
}

// TestLayersAheadAreResumed: a layer that arrives ahead of its turn goes on where its
// connection broke.
func TestLayersAheadAreResumed(t *testing.T) {
	r := newRegistry(t)
	img, want, _ := layered(t, maxFetches+1, 300_000)
	r.push(t, ":1", img)
	r.answer(cut(100_000))
	s := storeFrom(t, Registries{})
	key, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:1"), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, tree(t, s.Root(key))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, most := r.requests("blobs"); most != 4 {
		t.Errorf("%d requests for a layer", most)
	}
}

// TestFailedPullEndsLayersAhead: when a layer fails in its turn or ahead of it, or the
// store ends, the pull ends with the cause though other layers still arrive, and leaves
// nothing.
func TestFailedPullEndsLayersAhead(t *testing.T) {
	for name, c := range map[string]struct {
		fails int // the layer; -1: the store ends
		cause error
	}{
		"in its turn": {0, providers.ErrStartFailed},
		"ahead":       {1, providers.ErrStartFailed},
		"store ends":  {-1, errClosed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			img, _, digests := layered(t, maxFetches, 300_000)
			r.push(t, ":1", img)
			arrived := make(chan struct{}, maxFetches)
			fail := make(chan struct{})
			r.answer(func(w http.ResponseWriter, req *http.Request, _ http.Handler) bool {
				i := slices.Index(digests, path.Base(req.URL.Path))
				if i < 0 {
					return false
				}
				arrived <- struct{}{}
				switch {
				case i == c.fails:
					<-fail
					http.Error(w, "gone", http.StatusNotFound)
					return true
				case i < c.fails:
					return false
				}
				// A part of it, and then nothing.
				w.Header().Set("Content-Length", "300000")
				_, _ = w.Write(make([]byte, 100_000))
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
				return true
			})
			s := storeFrom(t, Registries{})
			p := s.join(parse(t, r.host+"/team/app:1"))
			for range maxFetches {
				<-arrived
			}
			close(fail)
			if c.fails < 0 {
				s.Close()
			}
			<-p.ended
			if !errors.Is(p.err, c.cause) {
				t.Errorf("%v", p.err)
			}
			if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestLayersAheadNeedSpace: without space for files of layers, they come one after the
// other; when such a file fills the disk, the error reports it and the space is free again.
func TestLayersAheadNeedSpace(t *testing.T) {
	r := newRegistry(t)
	img, want, digests := layered(t, maxFetches+1, 300_000)
	r.push(t, ":1", img)
	all, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	packed := make(map[int64]bool)
	for _, l := range all {
		size, err := l.Size()
		if err != nil {
			t.Fatal(err)
		}
		packed[size] = true
	}
	g := gate(r, digests)
	close(g.open)
	s := storeFrom(t, Registries{})
	s.admit = func(size int64) error {
		if packed[size] {
			return providers.ErrExhausted
		}
		return nil
	}
	key, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:1"), "")
	if err != nil {
		t.Fatal(err)
	}
	if most := g.most; most != 1 {
		t.Errorf("%d layers were fetched at once", most)
	}
	if diff := cmp.Diff(want, tree(t, s.Root(key))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestLayerAheadFillsTheDisk: the error reports it, and the space is free again.
func TestLayerAheadFillsTheDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	s := storeFrom(t, Registries{})
	s.dir = t.TempDir()
	if err := unix.Mount("tmpfs", s.dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.dir, 0); err != nil {
			t.Error(err)
		}
	})
	r := newRegistry(t)
	img, _, digests := layered(t, 2, 3<<20)
	r.push(t, ":large", img)
	// The first layer comes only when the pull has given up the second one, of which the
	// last byte is missing.
	full := make(chan struct{})
	r.answer(func(w http.ResponseWriter, req *http.Request, next http.Handler) bool {
		switch path.Base(req.URL.Path) {
		case digests[0]:
			<-full
		case digests[1]:
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, req)
			body := rec.Body.Bytes()
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body[:len(body)-1])
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
			close(full)
			return true
		}
		return false
	})
	if _, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:large"), ""); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("%v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil || st.Bfree != st.Blocks {
		t.Errorf("%d of %d blocks are free, %v", st.Bfree, st.Blocks, err)
	}
}
