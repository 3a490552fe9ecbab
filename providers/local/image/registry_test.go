//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers/internal/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRegistry is a registry that counts requests.
type testRegistry struct {
	*httptest.Server
	host string

	mu     sync.Mutex
	counts map[string]int                                                              // of GETs by path
	before func(w http.ResponseWriter, r *http.Request, next http.Handler) (done bool) // may answer a GET
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{counts: make(map[string]int)}
	content := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			r.mu.Lock()
			r.counts[req.URL.Path]++
			before := r.before
			r.mu.Unlock()
			if before != nil && before(w, req, content) {
				return
			}
		}
		content.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	return r
}

// answer sets what may answer a GET instead of the registry.
func (r *testRegistry) answer(before func(w http.ResponseWriter, r *http.Request, next http.Handler) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = before
}

// requests counts the GETs of a kind, "blobs" or "manifests", and the most of one path.
func (r *testRegistry) requests(kind string) (all, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, n := range r.counts {
		if strings.Contains(path, "/"+kind+"/") {
			all, most = all+n, max(most, n)
		}
	}
	return all, most
}

// client is a transport that leaves no connection open.
func client(t *testing.T) remote.Option {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return remote.WithTransport(transport)
}

func (r *testRegistry) ref(t *testing.T, id string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/team/app" + id)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (r *testRegistry) push(t *testing.T, id string, img v1.Image) {
	t.Helper()
	if err := remote.Write(r.ref(t, id), img, client(t)); err != nil {
		t.Fatal(err)
	}
}

func (r *testRegistry) pushIndex(t *testing.T, id string, index v1.ImageIndex) {
	t.Helper()
	if err := remote.WriteIndex(r.ref(t, id), index, client(t)); err != nil {
		t.Fatal(err)
	}
}

// storeFrom returns a store that finds the registries, and no credentials of this
// machine.
func storeFrom(t *testing.T, from Registries) *Store {
	t.Helper()
	if from.AuthFile == "" {
		from.AuthFile = filepath.Join(t.TempDir(), "auth.json")
		if err := os.WriteFile(from.AuthFile, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := func() (map[string]bool, error) { return nil, nil }
	s := NewStore(t.TempDir(), lock.NewTable(t.TempDir()), slog.New(slog.DiscardHandler), from, nil, none)
	t.Cleanup(s.Close)
	s.registries.wait = time.Millisecond
	return s
}

func authFile(t *testing.T, host, user, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "auth.json")
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, host, auth), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func parse(t *testing.T, ref string) Reference {
	t.Helper()
	r, err := Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// imageOf makes an image of layers in tar format, which it compresses in turns by
// gzip and zstd.
func imageOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for i, data := range layers {
		how, kind := compression.GZip, types.OCILayer
		if i%2 == 1 {
			how, kind = compression.ZStd, types.OCILayerZStd
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
			tarball.WithCompression(how), tarball.WithMediaType(kind))
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config.Env = "linux", runtime.GOARCH, []string{"FROM=registry"}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

func small(t *testing.T, text string) v1.Image {
	t.Helper()
	return imageOf(t, makeTar(t, tarEntry{name: "file", data: text}))
}

func indexOf(t *testing.T, platforms map[string]v1.Image) v1.ImageIndex {
	t.Helper()
	var index v1.ImageIndex = empty.Index
	for platform, img := range platforms {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: p}})
	}
	return index
}

func keyOf(t *testing.T, img v1.Image) string {
	t.Helper()
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.Hex
}

// largeLayers are 20 000 files, and a layer that changes them.
func largeLayers(t *testing.T) (layers [][]byte, want map[string]string) {
	t.Helper()
	const count = 20_000
	entries := []tarEntry{
		{name: "bin/tool", data: "tool"}, {name: "bin/alias", kind: tar.TypeLink, link: "bin/tool"}, {name: "bin/soft", kind: tar.TypeSymlink, link: "tool"},
		{name: "old/gone", data: "1"}, {name: "old/kept", data: "2"}, {name: "opaque/gone", data: "3"},
	}
	want = map[string]string{
		"bin": "/", "bin/tool": "tool", "bin/alias": "tool", "bin/soft": "->tool", "old": "/", "old/kept": "2", "opaque": "/", "opaque/new": "4", "many": "/", "marked": "m",
	}
	for i := range count {
		name := fmt.Sprintf("many/%05d", i)
		entries = append(entries, tarEntry{name: name, data: name})
		want[name] = name
	}
	var marked bytes.Buffer
	w := tar.NewWriter(&marked)
	h := tar.Header{
		Name: "marked", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1, Uid: os.Getuid(), Gid: os.Getgid(),
		Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.user.color": "blue"},
	}
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "m"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	changes := makeTar(t, tarEntry{name: "old/.wh.gone"}, tarEntry{name: "opaque/.wh..wh..opq"}, tarEntry{name: "opaque/new", data: "4"})
	return [][]byte{makeTar(t, entries...), changes, marked.Bytes()}, want
}
