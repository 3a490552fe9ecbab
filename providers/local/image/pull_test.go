//go:build linux

package image

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// TestPulledImageIsWhatTheRegistryHas: what a registry has is what a sandbox sees.
func TestPulledImageIsWhatTheRegistryHas(t *testing.T) {
	layers, want := largeLayers(t)
	r := newRegistry(t)
	img := imageOf(t, layers...)
	r.push(t, ":1", img)
	s := storeFrom(t, Registries{})
	key, meta, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:1"), "")
	if err != nil || key != keyOf(t, img) || meta.Env["FROM"] != "registry" {
		t.Fatalf("%s, %+v, %v", key, meta, err)
	}
	root := s.Root(key)
	if diff := cmp.Diff(want, tree(t, root)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(root, "bin/tool"))
	if err != nil || info.Sys().(*syscall.Stat_t).Nlink != 2 {
		t.Errorf("hard link: %v, %v", info, err)
	}
	value := make([]byte, 10)
	if n, err := unix.Getxattr(filepath.Join(root, "marked"), "user.color", value); err != nil || string(value[:n]) != "blue" {
		t.Errorf("attribute: %v", err)
	}
}

// TestPullFindsTheImageForThisMachine: a manifest list, a list in a list, and a digest of each find the
// image for this machine.
func TestPullFindsTheImageForThisMachine(t *testing.T) {
	r := newRegistry(t)
	img, other := small(t, "ours"), small(t, "other")
	index := indexOf(t, map[string]v1.Image{"linux/" + runtime.GOARCH: img, "linux/s390x": other, "windows/" + runtime.GOARCH: other})
	outer := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index})
	r.push(t, ":plain", img)
	r.pushIndex(t, ":list", index)
	r.pushIndex(t, ":outer", outer)
	list, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{":plain", ":list", ":outer", "@sha256:" + keyOf(t, img), ":list@" + list.String()} {
		s := storeFrom(t, Registries{})
		key, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app"+id), "")
		if err != nil || key != keyOf(t, img) {
			t.Errorf("%s: %s, %v", id, key, err)
		}
	}
}

// TestFailedPullNamesItsCauseAndLeavesNothing: each failure has its sentinel and names its cause, and leaves
// nothing.
func TestFailedPullNamesItsCauseAndLeavesNothing(t *testing.T) {
	r := newRegistry(t)
	r.push(t, ":1", small(t, "good"))
	r.pushIndex(t, ":foreign", indexOf(t, map[string]v1.Image{"linux/s390x": small(t, "a"), "windows/amd64": small(t, "b")}))
	foreign := small(t, "c")
	file, err := foreign.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture = "s390x"
	if foreign, err = mutate.ConfigFile(foreign, file); err != nil {
		t.Fatal(err)
	}
	r.push(t, ":foreign-alone", foreign)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	status := func(code int) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !strings.Contains(r.URL.Path, "/team/") {
				return false
			}
			http.Error(w, "internal secret", code)
			return true
		}
	}
	blobs := func(f func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			f(w, r)
			return true
		}
	}
	for name, c := range map[string]struct {
		ref    string
		answer func(http.ResponseWriter, *http.Request, http.Handler) bool
		want   error
		text   string
	}{
		"unknown tag":   {r.host + "/team/app:none", nil, providers.ErrStartFailed, "has no such image"},
		"unknown name":  {r.host + "/nobody/none", nil, providers.ErrStartFailed, "has no such image"},
		"unauthorized":  {r.host + "/team/app:1", status(http.StatusUnauthorized), providers.ErrStartFailed, "denies access"},
		"forbidden":     {r.host + "/team/app:1", status(http.StatusForbidden), providers.ErrStartFailed, "denies access"},
		"rate limit":    {r.host + "/team/app:1", status(http.StatusTooManyRequests), providers.ErrUnavailable, "no more requests now"},
		"failing":       {r.host + "/team/app:1", status(http.StatusServiceUnavailable), providers.ErrUnavailable, "status 503"},
		"teapot":        {r.host + "/team/app:1", status(http.StatusTeapot), providers.ErrStartFailed, "status 418"},
		"away":          {away + "/team/app:1", nil, providers.ErrUnavailable, "connection refused"},
		"no platform":   {r.host + "/team/app:foreign", nil, providers.ErrStartFailed, "linux/s390x"},
		"wrong machine": {r.host + "/team/app:foreign-alone", nil, providers.ErrStartFailed, "linux/s390x"},
		"other digest":  {r.host + "/team/app@sha256:" + strings.Repeat("0", 64), nil, providers.ErrStartFailed, "no such image"},
		"forged manifest": {r.host + "/team/app@sha256:" + strings.Repeat("0", 64), func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			_, _ = w.Write([]byte("{}"))
			return true
		}, providers.ErrStartFailed, "does not match its digest"},
		"endless manifest": {r.host + "/team/app:1", func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return true
				}
			}
			return true
		}, providers.ErrExhausted, "more than"},
		"forged blobs": {r.host + "/team/app:1", blobs(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 10_000))
		}), providers.ErrStartFailed, "does not match its digest"},
		"redirect to a private address": {r.host + "/team/app:1", blobs(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://10.1.2.3/latest", http.StatusFound)
		}), providers.ErrStartFailed, "private network"},
		"redirect without TLS": {r.host + "/team/app:1", blobs(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.invalid/blob", http.StatusFound)
		}), providers.ErrStartFailed, "plain HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			r.answer(c.answer)
			s := storeFrom(t, Registries{})
			_, _, err := s.Pull(t.Context(), parse(t, c.ref), "")
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
			if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestCredentialsNeedTLS: credentials never go to another machine without TLS, unless the
// operator allows it.
func TestCredentialsNeedTLS(t *testing.T) {
	r := newRegistries(Registries{Known: []Registry{{Name: "plain.example:5000", PlainHTTP: true}}})
	sent := errors.New("it was sent")
	for url, want := range map[string]error{
		"https://10.0.0.1/v2/": sent, "http://10.0.0.1/v2/": errPlainHTTP, "http://registry.local/v2/": errPlainHTTP, "http://plain.example:5000/v2/": sent,
		"http://plain.example/v2/": errPlainHTTP, "http://127.0.0.1:5000/v2/": sent, "http://[::1]:5000/v2/": sent, "http://localhost/v2/": sent, "ftp://10.0.0.1/": errPlainHTTP,
	} {
		req := httptest.NewRequest(http.MethodGet, url, nil)
		_, err := guard{inner: roundTripper(func(*http.Request) (*http.Response, error) { return nil, sent }), plain: r.plain}.RoundTrip(req)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPullWithCredentials: a registry that wants a password, or a token for it, gets
// that of the file, and no other registry does.
func TestPullWithCredentials(t *testing.T) {
	img := small(t, "private")
	for kind, challenge := range map[string]func(host string) string{
		"basic": func(string) string { return `Basic realm="test"` },
		"token": func(host string) string { return `Bearer realm="http://` + host + `/token",service="test"` },
	} {
		t.Run(kind, func(t *testing.T) {
			r := newRegistry(t)
			r.push(t, ":1", img)
			r.answer(func(w http.ResponseWriter, req *http.Request, _ http.Handler) bool {
				user, password, _ := req.BasicAuth()
				known := user == "robot" && password == "pass:word"
				if req.URL.Path == "/token" {
					if !known {
						http.Error(w, "no", http.StatusUnauthorized)
						return true
					}
					_, _ = w.Write([]byte(`{"token": "for-the-test"}`))
					return true
				}
				if kind == "basic" && known || req.Header.Get("Authorization") == "Bearer for-the-test" {
					return false
				}
				w.Header().Set("WWW-Authenticate", challenge(r.host))
				http.Error(w, "no", http.StatusUnauthorized)
				return true
			})
			ref := parse(t, r.host+"/team/app:1")
			s := storeFrom(t, Registries{AuthFile: authFile(t, r.host, "robot", "pass:word")})
			if key, _, err := s.Pull(t.Context(), ref, ""); err != nil || key != keyOf(t, img) {
				t.Errorf("%s, %v", key, err)
			}
			for _, file := range []string{authFile(t, r.host, "robot", "wrong"), authFile(t, "other.example", "robot", "pass:word")} {
				s := storeFrom(t, Registries{AuthFile: file})
				_, _, err := s.Pull(t.Context(), ref, "")
				if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "denies access") || strings.Contains(err.Error(), "pass") {
					t.Errorf("without: %v", err)
				}
			}
			s = storeFrom(t, Registries{AuthFile: filepath.Join(t.TempDir(), "missing")})
			if _, _, err := s.Pull(t.Context(), ref, ""); !errors.Is(err, providers.ErrStartFailed) {
				t.Errorf("without the file: %v", err)
			}
		})
	}
}

// TestPullFromMirror: mirrors go first, and the registry has what they have not.
func TestPullFromMirror(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	mirrored, own := small(t, "mirrored"), small(t, "own")
	mirror.push(t, ":1", mirrored)
	origin.push(t, ":2", own)
	s := storeFrom(t, Registries{Known: []Registry{{Name: origin.host, Mirrors: []string{mirror.host}}}})
	for id, want := range map[string]v1.Image{":1": mirrored, ":2": own} {
		key, _, err := s.Pull(t.Context(), parse(t, origin.host+"/team/app"+id), "")
		if err != nil || key != keyOf(t, want) {
			t.Errorf("%s: %s, %v", id, key, err)
		}
	}
	if n, _ := origin.requests("manifests"); n != 1 {
		t.Errorf("the registry was asked %d times", n)
	}
	// Half a layer from the mirror, and the image from the registry.
	half := random(t, 1<<20)
	mirror.push(t, ":3", half)
	origin.push(t, ":3", half)
	mirror.answer(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		http.Error(w, "gone", http.StatusNotFound)
		return true
	})
	if key, _, err := s.Pull(t.Context(), parse(t, origin.host+"/team/app:3"), ""); err != nil || key != keyOf(t, half) {
		t.Errorf("after the mirror's failure: %s, %v", key, err)
	}
}

// random is an image that does not compress.
func random(t *testing.T, size int) v1.Image {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	return imageOf(t, makeTar(t, tarEntry{name: "data", data: string(data)}))
}

// cut breaks each answer with a blob after some bytes.
func cut(after int) func(http.ResponseWriter, *http.Request, http.Handler) bool {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		body := rec.Body.Bytes()
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(body[:min(after, len(body))])
		if after < len(body) {
			panic(http.ErrAbortHandler)
		}
		return true
	}
}

// TestPullIsResumed: a pull goes on where a connection broke, and one that cannot go
// on leaves nothing and begins anew.
func TestPullIsResumed(t *testing.T) {
	r := newRegistry(t)
	img := random(t, 1<<20)
	r.push(t, ":1", img)
	ref := parse(t, r.host+"/team/app:1")
	r.answer(cut(300_000))
	s := storeFrom(t, Registries{})
	if key, _, err := s.Pull(t.Context(), ref, ""); err != nil || key != keyOf(t, img) {
		t.Fatalf("%s, %v", key, err)
	}
	if _, most := r.requests("blobs"); most != 4 {
		t.Errorf("%d requests for the layer", most)
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request, http.Handler) bool{
		"nothing more comes": cut(0),
		"no ranges": func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			r.Header.Del("Range")
			return cut(300_000)(w, r, next)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.answer(answer)
			s := storeFrom(t, Registries{})
			if _, _, err := s.Pull(t.Context(), ref, ""); !errors.Is(err, providers.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			r.answer(nil)
			if key, _, err := s.Pull(t.Context(), ref, ""); err != nil || key != keyOf(t, img) {
				t.Errorf("again: %s, %v", key, err)
			}
		})
	}
}

// TestPullToAFullDiskFreesTheSpace: the error reports it, and the space is free again.
func TestPullToAFullDiskFreesTheSpace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	r := newRegistry(t)
	r.push(t, ":large", random(t, 6<<20))
	r.push(t, ":small", small(t, "small"))
	s := storeFrom(t, Registries{})
	s.dir = dir
	if _, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:large"), ""); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:small"), ""); err != nil {
		t.Errorf("a small one: %v", err)
	}
	s.admit = func(size int64) error { return fmt.Errorf("%d bytes: %w", size, providers.ErrExhausted) }
	before, _ := r.requests("blobs")
	_, _, err := s.Pull(t.Context(), parse(t, r.host+"/team/app:large"), PullAlways)
	if after, _ := r.requests("blobs"); !errors.Is(err, providers.ErrExhausted) || after != before {
		t.Errorf("without space it pulls %d blobs, %v", after-before, err)
	}
}

// FuzzManifest: whatever a registry answers, nothing outside the store changes.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:x"}]}`), true)
	f.Add([]byte(`{"config": {"digest": "sha256:../../x", "size": 1}, "layers": [{"size": -1}]}`), false)
	repo := &repository{host: "registry.example"}
	f.Fuzz(func(t *testing.T, data []byte, index bool) {
		if index {
			if d, err := choose(data); err == nil && !d.MediaType.IsIndex() && !d.MediaType.IsImage() {
				t.Errorf("it chose %+v", d)
			}
			return
		}
		files := &remoteFiles{ctx: t.Context(), repo: repo, manifest: data, sizes: make(map[string]int64)}
		if total, err := files.measure(); err == nil && (total < 0 || total > maxBytes) {
			t.Errorf("%d bytes", total)
		}
	})
}
