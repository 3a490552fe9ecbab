//go:build linux

package local_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestImageConformance runs the suite on an image that has nothing but busybox:
// no python, no tar beyond it, no user, no writable directory of its own.
func TestImageConformance(t *testing.T) {
	config := testConfig(t)
	ref := "oci:" + writeLayout(t, busyboxImage(t))
	providertest.Run(t, providertest.Harness{
		Open: func(t *testing.T) providers.Provider { return open(t, config) },
		Spec: func() providers.Spec { return imageSpec(t, ref, "") },
		Except: map[string]string{
			"C24_python":                    "the image has none",
			"C24_program_python_threads":    "the image has no python3",
			"C24_program_python_subprocess": "the image has no python3",
			"C24_program_python_sqlite":     "the image has no python3",
			"C24_program_node_workers":      "the image has no node",
			"C24_program_git":               "the image has no git",
			"C24_program_compiler":          "the image has no cc",
			"C24_program_sqlite":            "the image has no sqlite3",
		},
	})
}

// TestOneImageInItsThreeForms reads one image in its three forms, with its settings for
// processes, and once with a writable layer.
func TestOneImageInItsThreeForms(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) { testImageForms(t, runtime) })
	}
}

func testImageForms(t *testing.T, runtime string) {
	config := testConfigOf(t, runtime)
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	img := busyboxImage(t)
	dir := writeLayout(t, img)
	for _, c := range []struct{ name, ref, extra, want string }{
		{"layout", "oci:" + dir, "", "app web /app yes read-only\n"},
		{"layout with a tag", "oci:" + dir + ":latest", "", "app web /app yes read-only\n"},
		{"archive", "oci-archive:" + tarOf(t, dir), "", "app web /app yes read-only\n"},
		{"docker", "docker-archive:" + dockerArchive(t, img), "", "app web /app yes read-only\n"},
		{"writable", "oci:" + dir, `"writable_root": true`, "app web /app yes writable\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := imageSpec(t, c.ref, c.extra)
			spec.Hash, spec.WorkingDirectory = c.name, ""
			info, err := providertest.Create(t.Context(), p, "image", spec)
			if err != nil {
				t.Fatal(err)
			}
			if info.ReadOnlySystem == (c.extra != "") {
				t.Errorf("read-only system: %v", info.ReadOnlySystem)
			}
			got := providertest.Shell(t, p, "image", `echo $(id -un) $(id -gn) $(pwd) $FROM_IMAGE $(touch /app/f 2>/dev/null && echo writable || echo read-only)`)
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if err := p.Delete(t.Context(), "image", providers.Condition{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestImageErrors(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	dir := writeLayout(t, busyboxImage(t))
	for ref, want := range map[string]error{
		"oci:/no/such/layout":         providers.ErrInvalid,
		"oci:" + dir + ":no-such-tag": providers.ErrInvalid,
		"docker-archive:/etc/passwd":  providers.ErrInvalid,
		"127.0.0.1:1/nobody/home:1":   providers.ErrUnavailable,
		"not a reference":             providers.ErrInvalid,
	} {
		if _, err := providertest.Create(t.Context(), p, "bad", imageSpec(t, ref, "")); !errors.Is(err, want) {
			t.Errorf("%s: %v", ref, err)
		}
		if _, err := p.Get(t.Context(), "bad"); !errors.Is(err, providers.ErrNotFound) {
			t.Errorf("%s left %v", ref, err)
		}
	}
}

// TestImageFromRegistry pulls an image by name, shows its digest, and needs no registry
// for the next sandbox.
func TestImageFromRegistry(t *testing.T) {
	config := testConfig(t)
	config.Registries.AuthFile = filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(config.Registries.AuthFile, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	content := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer content.Close()
	ref := strings.TrimPrefix(content.URL, "http://") + "/team/busybox:1"
	img := busyboxImage(t)
	to, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if err := remote.Write(to, img, remote.WithTransport(transport)); err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, config)
	defer func() { closeProvider(t, p) }()
	for _, id := range []string{"first", "second"} {
		spec := imageSpec(t, ref, "")
		spec.WorkingDirectory = ""
		info, err := providertest.Create(t.Context(), p, id, spec)
		if err != nil || info.ImageDigest != want.String() {
			t.Fatalf("%s: %q, %v", id, info.ImageDigest, err)
		}
		if got := providertest.Shell(t, p, id, "echo $(id -un) $(pwd) $FROM_IMAGE"); got != "app /app yes\n" {
			t.Errorf("%s: %q", id, got)
		}
		// Neither another server nor the registry's absence matter to what is kept.
		content.Close()
		closeProvider(t, p)
		p = open(t, config)
	}
	spec := imageSpec(t, ref, `"pull": "always"`)
	if _, err := providertest.Create(t.Context(), p, "third", spec); !errors.Is(err, providers.ErrUnavailable) {
		t.Errorf("always, without the registry: %v", err)
	}
	for _, id := range []string{"first", "second"} {
		if err := p.Delete(t.Context(), id, providers.Condition{}); err != nil {
			t.Error(err)
		}
	}
}

func imageSpec(t *testing.T, ref, extra string) providers.Spec {
	t.Helper()
	return providers.Spec{
		Hash: "h", Image: ref, Network: providers.NetworkNone, Resources: local.DefaultResources(), WorkingDirectory: "/workspace",
		TemplateOptions: json.RawMessage("{" + extra + "}"),
	}
}

func busyboxImage(t *testing.T) v1.Image {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs root and runc, and a static busybox: none is installed")
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), path, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	headers := []tar.Header{{Name: "bin/busybox", Mode: 0o755, Size: int64(len(busybox))}}
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			headers = append(headers, tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeLink, Linkname: "bin/busybox"})
		}
	}
	headers = append(headers,
		tar.Header{Name: "usr/bin", Typeflag: tar.TypeSymlink, Linkname: "/bin"},
		tar.Header{Name: "app/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1234, Gid: 5678},
	)
	content := map[string][]byte{
		"bin/busybox": busybox,
		"etc/passwd":  []byte("root:x:0:0:root:/:/bin/sh\napp:x:1234:5678:App:/app:/bin/sh\n"),
		"etc/group":   []byte("root:x:0:\nweb:x:5678:\n"),
	}
	accounts := []tar.Header{
		{Name: "etc/passwd", Mode: 0o644, Size: int64(len(content["etc/passwd"]))},
		{Name: "etc/group", Mode: 0o644, Size: int64(len(content["etc/group"]))},
	}
	img := empty.Image
	for _, layer := range [][]tar.Header{headers, accounts} {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for i := range layer {
			if err := w.WriteHeader(&layer[i]); err != nil {
				t.Fatal(err)
			}
			if layer[i].Size > 0 {
				if _, err := w.Write(content[layer[i].Name]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil })
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
	file.OS, file.Architecture = "linux", "amd64"
	file.Config.Env = []string{"PATH=/bin", "FROM_IMAGE=yes"}
	file.Config.WorkingDir = "/app"
	file.Config.User = "1234:5678"
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

func writeLayout(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "latest"})); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tarOf(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-cf", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return path
}

func dockerArchive(t *testing.T, img v1.Image) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	tag, err := name.NewTag("example.org/busybox:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(path, tag, img); err != nil {
		t.Fatal(err)
	}
	return path + ":example.org/busybox:1"
}
