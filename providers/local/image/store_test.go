//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// forgery makes a layout of one layer by hand, so that each part can differ
// from its digest.
type forgery struct {
	layer, manifest, config []byte // the files as they lie there
	diffID                  string // that the configuration states
	layerDigest             string // that the manifest states
	layers                  int    // how often the manifest has the layer
}

func honest(tb testing.TB, file string) forgery {
	layer := makeTar(tb, tarEntry{name: "file", data: file})
	return forgery{layer: layer, diffID: digest(layer), layerDigest: digest(layer), layers: 1}
}

// files returns the layout's files by name, and its key.
func (f forgery) files(tb testing.TB) (map[string][]byte, string) {
	tb.Helper()
	encode := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			tb.Fatal(err)
		}
		return data
	}
	config := encode(map[string]any{"os": "linux", "architecture": runtime.GOARCH, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{f.diffID}}})
	descriptor := func(kind, digest string, size int) map[string]any {
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": digest, "size": size}
	}
	var layers []any
	for range f.layers {
		layers = append(layers, descriptor("layer.v1.tar", f.layerDigest, len(f.layer)))
	}
	manifest := encode(map[string]any{"schemaVersion": 2, "config": descriptor("config.v1+json", digest(config), len(config)), "layers": layers})
	blob := func(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }
	key := digest(manifest)
	out := map[string][]byte{
		"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json": encode(map[string]any{"schemaVersion": 2, "manifests": []any{descriptor("manifest.v1+json", key, len(manifest))}}),
		blob(key):    manifest, blob(digest(config)): config, blob(f.layerDigest): f.layer,
	}
	if f.manifest != nil {
		out[blob(key)] = f.manifest
	}
	if f.config != nil {
		out[blob(digest(config))] = f.config
	}
	return out, strings.TrimPrefix(key, "sha256:")
}

func writeForgery(tb testing.TB, f forgery) (ref, key string) {
	tb.Helper()
	dir := tb.TempDir()
	files, key := f.files(tb)
	for name, data := range files {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(dir, name), data, 0o644)); err != nil {
			tb.Fatal(err)
		}
	}
	return dir, key
}

func newStore(tb testing.TB) *Store {
	tb.Helper()
	none := func() (map[string]bool, error) { return nil, nil }
	return NewStore(tb.TempDir(), lock.NewTable(tb.TempDir()), slog.New(slog.DiscardHandler), Registries{}, nil, none)
}

// TestImageThatDoesNotMatchItsDigestsIsRejected: an image whose parts do not match its digests is rejected,
// and nothing of it is kept.
func TestImageThatDoesNotMatchItsDigestsIsRejected(t *testing.T) {
	other := makeTar(t, tarEntry{name: "file", data: "evil"})
	for name, forge := range map[string]func(*forgery){
		"layer":                  func(f *forgery) { f.layer = other },
		"layer by its diff id":   func(f *forgery) { f.layer, f.layerDigest = other, digest(other) },
		"digest of the layer":    func(f *forgery) { f.layerDigest = digest(other) },
		"bytes after the layer":  func(f *forgery) { f.layer = append(bytes.Clone(f.layer), 0) },
		"manifest":               func(f *forgery) { f.manifest = []byte(`{"layers": []}`) },
		"configuration":          func(f *forgery) { f.config = []byte(`{"rootfs": {"diff_ids": []}}`) },
		"fewer diff ids":         func(f *forgery) { f.layers = 2 },
		"diff id of another sum": func(f *forgery) { f.diffID = "sha512:" + strings.Repeat("0", 128) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			f := honest(t, "good")
			forge(&f)
			dir, _ := writeForgery(t, f)
			if _, _, err := s.Unpack(t.Context(), Reference{kind: "oci", path: dir}); !errors.Is(err, providers.ErrStartFailed) {
				t.Errorf("it is taken: %v", err)
			}
			if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestImageOfTheSameConfiguration: an image with another's configuration is not
// used in its place.
func TestImageOfTheSameConfiguration(t *testing.T) {
	s := newStore(t)
	good := honest(t, "good")
	evil := honest(t, "evil")
	evil.diffID = good.diffID
	dir, _ := writeForgery(t, evil)
	if _, _, err := s.Unpack(t.Context(), Reference{kind: "oci", path: dir}); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("it is taken: %v", err)
	}
	dir, want := writeForgery(t, good)
	key, _, err := s.Unpack(t.Context(), Reference{kind: "oci", path: dir})
	if err != nil || key != want {
		t.Fatalf("%s, %v", key, err)
	}
	if diff := cmp.Diff(map[string]string{"file": "good"}, tree(t, s.Root(key))); diff != "" {
		t.Error(diff)
	}
}

// TestImageIsUnpackedOnce: an unpacked image is found by the index alone, in a
// directory and in an archive.
func TestImageIsUnpackedOnce(t *testing.T) {
	s := newStore(t)
	f := honest(t, "good")
	dir, want := writeForgery(t, f)
	if _, _, err := s.Unpack(t.Context(), Reference{kind: "oci", path: dir}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	var entries []tarEntry
	files, _ := f.files(t)
	entries = append(entries, tarEntry{name: "./index.json", data: string(files["index.json"])})
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, makeTar(t, entries...), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, r := range []Reference{{kind: "oci", path: dir}, {kind: "oci-archive", path: archive}} {
		if key, _, err := s.Unpack(t.Context(), r); err != nil || key != want {
			t.Errorf("%s: %s, %v", r.kind, key, err)
		}
	}
}

func TestImageArchives(t *testing.T) {
	layer := makeTar(t, tarEntry{name: "file", data: "good"})
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := z.EncodeAll(layer, nil)
	config := `{"os":"linux","config":{"User":"7"},"rootfs":{"type":"layers","diff_ids":["` + digest(layer) + `"]}}`
	manifest := `[{"Config":"c.json","RepoTags":["base:1"],"Layers":["l2/layer.tar"]}]`
	archive := filepath.Join(t.TempDir(), "docker.tar")
	data := makeTar(t,
		tarEntry{name: "l1/layer.tar", data: string(packed)}, tarEntry{name: "l2/layer.tar", kind: tar.TypeSymlink, link: "../l1/layer.tar"},
		tarEntry{name: "c.json", data: config}, tarEntry{name: "manifest.json", data: manifest})
	if err := os.WriteFile(archive, data, 0o644); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	for tag, want := range map[string]error{"": nil, "base:1": nil, "docker.io/library/base:1": nil, "base:2": providers.ErrInvalid, "::": providers.ErrInvalid} {
		key, meta, err := s.Unpack(t.Context(), Reference{kind: "docker-archive", path: archive, tag: tag})
		if !errors.Is(err, want) || err == nil && ("sha256:"+key != digest([]byte(config)) || meta.User.UID != 7 || meta.Bytes != 4) {
			t.Errorf("%q: %s, %+v, %v", tag, key, meta, err)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), "/dev/zero"} {
		if _, _, err := s.Unpack(t.Context(), Reference{kind: "oci-archive", path: path}); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestHalfUnpackedImagesAreRemovedUnlessLocked: a half unpacked image of a killed server is removed,
// unless its lock is held.
func TestHalfUnpackedImagesAreRemovedUnlessLocked(t *testing.T) {
	s := newStore(t)
	for _, key := range []string{"dead", "busy"} {
		if err := os.MkdirAll(filepath.Join(s.dir, partPrefix+key, "rootfs"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	held, err := s.locks.Acquire(t.Context(), lockName("busy"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release(true)
	if err := s.Sweep(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(s.dir)
	if err != nil || len(left) != 1 || left[0].Name() != partPrefix+"busy" {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestUnusedImages(t *testing.T) {
	now := time.Now()
	img := func(key string, gigabytes int64, idle time.Duration) stored {
		return stored{key, gigabytes << 30, now.Add(-idle)}
	}
	for _, c := range []struct {
		name   string
		stored []stored
		want   string
	}{
		{"none", nil, ""},
		{"few and recent", []stored{img("a", 1, time.Hour), img("b", 1, 13*24*time.Hour)}, ""},
		{"not used for long", []stored{img("a", 1, 15*24*time.Hour), img("used", 1, 15*24*time.Hour)}, "a"},
		{"too many", []stored{img("a", 30, time.Hour), img("b", 30, 3*time.Hour), img("c", 5, 2*time.Hour)}, "b"},
		{"too many and in use", []stored{img("used", 30, 4*time.Hour), img("b", 30, 3*time.Hour), img("c", 5, time.Minute)}, "b"},
		{"too many and just asked for", []stored{img("a", 30, time.Minute), img("b", 30, 2*time.Minute)}, ""},
	} {
		var got []string
		for _, img := range unused(c.stored, map[string]bool{"used": true}, idleTime, now) {
			got = append(got, img.key)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestOnlyUnusedImagesAreCollected: an unused image is removed with its files, one that a
// sandbox uses is not.
func TestOnlyUnusedImagesAreCollected(t *testing.T) {
	s := newStore(t)
	keys := map[string]string{}
	for _, name := range []string{"used", "unused"} {
		dir, _ := writeForgery(t, honest(t, name))
		key, _, err := s.Unpack(t.Context(), Reference{kind: "oci", path: dir})
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = key
	}
	for _, key := range keys {
		long := time.Now().Add(-2 * idleTime)
		if err := os.Chtimes(s.metaFile(key), long, long); err != nil {
			t.Fatal(err)
		}
	}
	s.inUse = func() (map[string]bool, error) { return map[string]bool{keys["used"]: true}, nil }
	if err := s.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(s.dir)
	if err != nil || len(left) != 1 || left[0].Name() != keys["used"] {
		t.Errorf("left: %v, %v", left, err)
	}
}

// FuzzImageArchive: whatever an archive holds, nothing outside the store changes.
func FuzzImageArchive(f *testing.F) {
	files, _ := honest(f, "good").files(f)
	var entries []tarEntry
	for name, data := range files {
		entries = append(entries, tarEntry{name: name, data: string(data)})
	}
	f.Add(makeTar(f, entries...), true)
	f.Add(makeTar(f, tarEntry{name: "manifest.json", data: `[{"Config":"c","Layers":["../../x"]}]`}, tarEntry{name: "c", data: `{"rootfs":{"diff_ids":["x"]}}`}), false)
	f.Fuzz(func(t *testing.T, data []byte, oci bool) {
		dir := t.TempDir()
		archive := filepath.Join(dir, "image.tar")
		if err := os.WriteFile(archive, data, 0o644); err != nil {
			t.Fatal(err)
		}
		kind := "docker-archive"
		if oci {
			kind = "oci-archive"
		}
		_, _, _ = newStore(t).Unpack(t.Context(), Reference{kind: kind, path: archive})
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("beside the archive there is %v, %v", left, err)
		}
	})
}
