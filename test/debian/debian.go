// Package debian makes images of a minimal Debian from the packages of this machine,
// and packages to install there.
package debian

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Repository is where the image has a repository for apt, with one package: hello.
const Repository = "/repository"

// Archive returns the path of an image as docker save writes it, for a test's duration.
func Archive(t testing.TB) string {
	t.Helper()
	for _, tool := range []string{"dpkg-query", "dpkg-deb", "apt-get", "tar"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs a Debian: %v", err)
		}
	}
	dir := t.TempDir()
	layer := filepath.Join(dir, "layer.tar")
	files := filepath.Join(dir, "files")
	if err := os.WriteFile(files, []byte(strings.Join(packageFiles(t), "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "tar", "-C", "/", "-cf", layer, "--no-recursion", "--verbatim-files-from", "-T", files)
	own := filepath.Join(dir, "own")
	writeOwn(t, own)
	run(t, "tar", "-C", own, "--owner=0", "--group=0", "-rf", layer, ".")
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return os.Open(layer) })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", strings.TrimSpace(run(t, "dpkg", "--print-architecture"))
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("example.org/debian:1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "image.tar")
	if err := tarball.WriteToFile(path, tag, img); err != nil {
		t.Fatal(err)
	}
	return path
}

// packages returns the essential packages of this machine, and apt, with all that they
// depend on.
func packages(t testing.TB) []string {
	t.Helper()
	depends, all := map[string][]string{}, map[string]string{}
	var todo []string
	for line := range strings.Lines(run(t, "dpkg-query", "-W", "-f", "${Essential}\t${binary:Package}\t${Package}\t${Pre-Depends},${Depends}\t${Provides}\n")) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		binary, _, _ := strings.Cut(f[1], ":")
		for _, provided := range append(names(f[4]), f[2]) {
			all[provided] = binary
		}
		depends[binary] = names(f[3])
		if f[0] == "yes" || f[2] == "apt" {
			todo = append(todo, binary)
		}
	}
	var chosen []string
	seen := map[string]bool{}
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		if p == "" || seen[p] {
			continue
		}
		seen[p] = true
		chosen = append(chosen, p)
		for _, d := range depends[p] {
			todo = append(todo, all[d])
		}
	}
	return chosen
}

// names returns the packages of a list of dependencies, all of alternatives.
func names(list string) (out []string) {
	for one := range strings.SplitSeq(strings.ReplaceAll(list, "|", ","), ",") {
		if one, _, _ = strings.Cut(strings.TrimSpace(one), " "); one != "" {
			one, _, _ = strings.Cut(one, ":")
			out = append(out, one)
		}
	}
	return out
}

// packageFiles returns the files of the packages, relative to "/".
func packageFiles(t testing.TB) (out []string) {
	t.Helper()
	listed := map[string]bool{}
	add := func(path string) {
		if _, err := os.Lstat(path); err == nil && !listed[path] {
			listed[path] = true
			out = append(out, strings.TrimPrefix(path, "/"))
		}
	}
	// Where directories are merged, packages name files by a link.
	for _, link := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		add(link)
	}
	for path := range strings.Lines(run(t, "dpkg-query", append([]string{"-L"}, packages(t)...)...)) {
		path = strings.TrimSuffix(path, "\n")
		if !strings.HasPrefix(path, "/") || path == "/." || unwanted(path) {
			continue
		}
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(dir, filepath.Base(path))
		}
		add(path)
	}
	add("/etc/alternatives/awk")
	add("/usr/bin/awk")
	add("/etc/ld.so.cache")
	return out
}

func unwanted(path string) bool {
	for _, dir := range []string{"/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info", "/usr/share/zoneinfo"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// writeOwn writes what no package has: accounts, the database of packages, and the
// repository.
func writeOwn(t testing.TB, root string) {
	t.Helper()
	chosen := packages(t)
	status := run(t, "dpkg-query", append([]string{"-s"}, chosen...)...)
	for file, text := range map[string]string{
		"etc/passwd":              "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"etc/group":               "root:x:0:\nadm:x:4:\ntty:x:5:\nshadow:x:42:\nwww-data:x:33:\nstaff:x:50:\nnogroup:x:65534:\n",
		"var/lib/dpkg/status":     status,
		"var/lib/dpkg/arch":       strings.TrimSpace(run(t, "dpkg", "--print-architecture")) + "\n",
		"etc/apt/sources.list":    "deb [trusted=yes] file:" + Repository + " ./\n",
		"var/lib/dpkg/available":  "",
		"var/lib/dpkg/info/empty": "", "var/lib/dpkg/updates/.keep": "", "var/lib/dpkg/triggers/.keep": "",
		"var/lib/apt/lists/partial/.keep": "", "var/cache/apt/archives/partial/.keep": "", "var/log/apt/.keep": "", "etc/apt/preferences.d/.keep": "",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	writeRepository(t, root)
}

// hello is a package with what packages commonly have: an account of its own, files of
// another owner, a setuid program, a directory with the set-group-id bit, and a script
// that runs after its installation.
const hello = `set -e
mkdir -p p/DEBIAN p/usr/bin p/var/lib/hello p/etc p/var/spool/hello
printf '#!/bin/sh\necho hello\n' > p/usr/bin/hello
chmod 4755 p/usr/bin/hello
echo config > p/etc/hello.conf
chown 33:33 p/var/lib/hello
chown 0:50 p/var/spool/hello
chmod 2775 p/var/spool/hello
printf 'Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: says hello\n' > p/DEBIAN/control
printf '#!/bin/sh\nset -e\necho "hello:x:900:900::/var/lib/hello:/bin/sh" >> /etc/passwd\necho "hello:x:900:" >> /etc/group\nchown hello:hello /etc/hello.conf\nchmod 600 /etc/hello.conf\n' > p/DEBIAN/postinst
chmod 755 p/DEBIAN/postinst
mkdir -p "$1"
dpkg-deb --build p "$1/hello_1_all.deb" >/dev/null
cd "$1"
{ cat "$OLDPWD/p/DEBIAN/control"
  echo "Filename: ./hello_1_all.deb"
  echo "Size: $(stat -c %s hello_1_all.deb)"
  echo "SHA256: $(sha256sum hello_1_all.deb | cut -d' ' -f1)"
  echo; } > Packages
`

func writeRepository(t testing.TB, root string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", hello, "sh", filepath.Join(root, Repository))
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a package: %v\n%s", err, out)
	}
}

func run(t testing.TB, command string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", command, err))
	}
	return string(out)
}
