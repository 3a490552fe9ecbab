package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The images that a cluster has from its start, and the one that holds the agent,
// which is made on request.
const (
	pauseImage   = "docker.io/sandgate/pause:test"
	busyboxImage = "docker.io/sandgate/busybox:test"
	pythonImage  = "docker.io/sandgate/python:test"
	agentImage   = "docker.io/sandgate/agent:test"
)

// archive is where an image is kept once it is made, beside this binary: it
// outlives the cluster.
func (c *cluster) archive(image string) string {
	_, short, _ := strings.Cut(strings.TrimSuffix(image, ":test"), "sandgate/")
	return c.beside("images", short+".tar")
}

// makeImage builds an image unless its archive exists, and returns the archive.
func (c *cluster) makeImage(image string) (string, error) {
	path := c.archive(image)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(path), "work-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	var built v1.Image
	switch image {
	case pauseImage:
		built, err = pause(c.beside("pause"))
	case busyboxImage:
		built, err = busybox()
	case pythonImage:
		built, err = python(work)
	default:
		err = fmt.Errorf("do not know how to make %s", image)
	}
	if err != nil {
		return "", err
	}
	return path, write(path, image, built)
}

// write saves an image under a name. A reader finds it whole or not at all.
func write(path, image string, built v1.Image) error {
	tag, err := name.NewTag(image)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(path+".part", tag, built); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

func pause(binary string) (v1.Image, error) {
	var root layer
	root.file("pause", binary)
	return root.image(v1.Config{Entrypoint: []string{"/pause"}})
}

// busybox is the smallest image with a shell.
func busybox() (v1.Image, error) {
	var root layer
	if err := root.busybox(); err != nil {
		return nil, err
	}
	root.home()
	return root.image(shell)
}

// withAgent is busybox with the agent in it: an init container of this image can
// copy the agent from /sandgate-agent into a volume.
func withAgent(agent string) (v1.Image, error) {
	var root layer
	if err := root.busybox(); err != nil {
		return nil, err
	}
	root.home()
	root.file("sandgate-agent", agent)
	return root.image(shell)
}

// python is a Debian with Python 3. It takes about a minute, and the network. The
// image reads its layer from the directory work.
func python(work string) (v1.Image, error) {
	root, file := filepath.Join(work, "root"), filepath.Join(work, "layer.tar")
	for _, argv := range [][]string{
		{"debootstrap", "--variant=minbase", "--include=python3,python-is-python3", "bookworm", root},
		{
			"tar", "--create", "--file", file, "--directory", root, "--numeric-owner", "--exclude=./dev/*",
			"--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*", "--exclude=./usr/share/doc/*",
			"--exclude=./usr/share/locale/*", "--exclude=./usr/share/man/*", "--exclude=./etc/passwd", ".",
		},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = environ()
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", argv[0], err, out[max(0, len(out)-2000):])
		}
	}
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil {
		return nil, err
	}
	base, err := tarball.LayerFromFile(file)
	if err != nil {
		return nil, err
	}
	var over layer
	over.write("etc/passwd", string(passwd)+"user:x:1000:1000::/workspace:/bin/sh\n")
	over.dir("workspace", 0o777, 1000)
	return over.image(shell, base)
}

// shell is how an image with a shell runs.
var shell = v1.Config{
	Cmd: []string{"sh"}, WorkingDir: "/workspace",
	Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
}

// layer collects the files of one layer, and the first error.
type layer struct {
	out bytes.Buffer
	tar *tar.Writer
	err error
}

func (l *layer) add(header *tar.Header, content []byte) {
	if l.tar == nil {
		l.tar = tar.NewWriter(&l.out)
	}
	if l.err != nil {
		return
	}
	header.Size = int64(len(content))
	if l.err = l.tar.WriteHeader(header); l.err == nil {
		_, l.err = l.tar.Write(content)
	}
}

func (l *layer) dir(path string, mode int64, owner int) {
	l.add(&tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: mode, Uid: owner, Gid: owner}, nil)
}

func (l *layer) write(path, content string) {
	l.add(&tar.Header{Name: path, Mode: 0o644}, []byte(content))
}

// file copies a program of this machine.
func (l *layer) file(path, from string) {
	content, err := os.ReadFile(from)
	if err != nil {
		l.err = errors.Join(l.err, err)
		return
	}
	l.add(&tar.Header{Name: path, Mode: 0o755}, content)
}

// busybox adds a static busybox and a link for each of its commands.
func (l *layer) busybox() error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	commands, err := exec.Command(path, "--list").Output()
	if err != nil {
		return err
	}
	l.dir("bin", 0o755, 0)
	l.file("bin/busybox", path)
	for command := range strings.FieldsSeq(string(commands)) {
		if command != "busybox" {
			l.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + command, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	l.dir("usr", 0o755, 0)
	l.dir("usr/bin", 0o755, 0)
	l.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/bin/env", Linkname: "/bin/busybox", Mode: 0o777}, nil)
	return nil
}

// home adds the accounts root and user (1000), and the directories that both may
// write to.
func (l *layer) home() {
	l.dir("etc", 0o755, 0)
	l.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/workspace:/bin/sh\n")
	l.write("etc/group", "root:x:0:\nuser:x:1000:\n")
	l.dir("root", 0o700, 0)
	l.dir("tmp", 0o1777, 0)
	l.dir("workspace", 0o777, 1000)
}

// image puts the layer on top of others.
func (l *layer) image(config v1.Config, below ...v1.Layer) (v1.Image, error) {
	if l.err == nil {
		l.err = l.tar.Close()
	}
	if l.err != nil {
		return nil, l.err
	}
	top, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(l.out.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, append(below, top)...)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Config = runtime.GOARCH, "linux", config
	return mutate.ConfigFile(image, file)
}
