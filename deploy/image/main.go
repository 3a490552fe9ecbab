// Command image builds the container image of Sandgate from binaries that are
// there already: a scratch image for each architecture with the static binary,
// run as an unprivileged user. It needs no container engine and pulls nothing.
//
//	image --out DIR --tag NAME ARCH=SANDGATE,AGENT...
//
// SANDGATE becomes /bin/sandgate, the image's entry point, and AGENT
// /sandgate-agent: the same image serves as the init container that brings the
// agent into a pod.
//
// DIR then holds an OCI layout with an index of all architectures, to be pushed
// with any tool for that (crane, skopeo, oras), and one ARCH.tar for each, as
// "docker load" and "ctr images import" take it.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is who the image's process is: the customary "nonroot" of images that
// hold one static binary.
const user = "65532:65532"

func main() {
	out := flag.String("out", "dist/image", "directory to write to; what it holds is replaced")
	tag := flag.String("tag", "sandgate:dev", "name of the image")
	flag.Parse()
	if err := run(*out, *tag, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(out, tag string, binaries []string) error {
	if len(binaries) == 0 {
		return errors.New("give at least one ARCH=SANDGATE,AGENT, such as amd64=bin/sandgate,bin/sandgate-agent")
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		arch, files, ok := strings.Cut(b, "=")
		program, agent, both := strings.Cut(files, ",")
		if !ok || !both {
			return fmt.Errorf("%q is not ARCH=SANDGATE,AGENT", b)
		}
		img, err := build(arch, program, agent)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		if err := tarball.WriteToFile(filepath.Join(out, arch+".tar"), ref, img); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	_, err = layout.Write(out, index)
	return err
}

func build(arch, program, agent string) (v1.Image, error) {
	files, err := layer(program, agent)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), l)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Config = v1.Config{
		User:         user,
		Entrypoint:   []string{"/bin/sandgate"},
		Cmd:          []string{"serve"},
		Env:          []string{"PATH=/bin"},
		ExposedPorts: map[string]struct{}{"7777/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "sandgate",
			"org.opencontainers.image.description": "One authenticated gRPC endpoint in front of sandboxes for AI agents",
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, config)
}

// layer is the image's file system. Equal binaries give equal bytes: times are
// fixed, and so are owners.
func layer(program, agent string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []tar.Header{
		{Name: "tmp/", Mode: 0o1777},
		{Name: "var/lib/sandgate/", Mode: 0o700, Uid: 65532, Gid: 65532},
	} {
		dir.Typeflag, dir.ModTime = tar.TypeDir, time.Unix(0, 0)
		if err := w.WriteHeader(&dir); err != nil {
			return nil, err
		}
	}
	if err := add(w, "etc/passwd", 0o644, []byte(passwd)); err != nil {
		return nil, err
	}
	for _, file := range [][2]string{{"bin/sandgate", program}, {"sandgate-agent", agent}} {
		content, err := os.ReadFile(file[1])
		if err != nil {
			return nil, err
		}
		if err := add(w, file[0], 0o755, content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func add(w *tar.Writer, name string, mode int64, content []byte) error {
	h := tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content)), ModTime: time.Unix(0, 0)}
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

const passwd = "nonroot:x:65532:65532:nonroot:/var/lib/sandgate:/sbin/nologin\n"
