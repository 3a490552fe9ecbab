package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// imageRows compares a creation that pulls an image with `ctr image pull` of the same
// from the same registry, also from one that limits the rate of each connection, and
// creations with the image that is kept then with those that have none.
func imageRows(ctx context.Context, b *bench) ([]report.Figure, error) {
	for _, program := range []string{"containerd", "ctr", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			return []report.Figure{{What: "image", Ours: "skipped", Note: "there is no " + program + ", so the rows for images were skipped"}}, nil
		}
	}
	engine, err := startContainerd(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	defer engine.stop()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	fast, slow := httptest.NewServer(store), httptest.NewServer(limit(store))
	defer fast.Close()
	defer slow.Close()
	size := b.size(500 << 20)
	images, err := pushImages(host(fast), size, 2*b.count(3))
	if err != nil {
		return nil, err
	}
	half := len(images) / 2
	ours, theirs, err := pullImages(ctx, b, engine, images[:half])
	if err != nil {
		return nil, err
	}
	limited := make([]string, 0, half)
	for _, image := range images[half:] {
		limited = append(limited, strings.Replace(image, host(fast), host(slow), 1))
	}
	oursLimited, theirsLimited, err := pullImages(ctx, b, engine, limited)
	if err != nil {
		return nil, err
	}
	with, without, err := imageCreations(ctx, b, images[0])
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("image: first create with one of %d MiB", size>>20)
	return []report.Figure{
		report.Latency(what+" | ctr image pull", ours, theirs, 0.5, report.AtMost(1.5), report.AtMost(1)),
		report.Latency(fmt.Sprintf("%s, %.0f MB/s a connection | ctr", what, connectionRate/1e6), oursLimited, theirsLimited, 0.5, report.AtMost(1.5), report.AtMost(1)),
		report.Latency("image: create → first command with a kept one | without an image", with, without, 0.5, report.AtMost(1.2), report.AtMost(1)),
	}, nil
}

func host(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

// connectionRate is what the slow registry sends over one connection, in bytes a second.
const connectionRate = 20e6

// limit sends each answer at connectionRate, as registries on the internet do.
func limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&limitedWriter{ResponseWriter: w, began: time.Now()}, r)
	})
}

type limitedWriter struct {
	http.ResponseWriter
	began time.Time
	sent  int
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Until(w.began.Add(time.Duration(float64(w.sent) / connectionRate * float64(time.Second)))))
	n, err := w.ResponseWriter.Write(p)
	w.sent += n
	return n, err
}

// pullImages pulls each image on both sides, in turns.
func pullImages(ctx context.Context, b *bench, engine *containerd, images []string) (ours, theirs report.Samples, err error) {
	for i, image := range images {
		id := fmt.Sprintf("bench-pull-%d", i)
		start := time.Now()
		remove, err := b.sandboxWith(ctx, id, &sandboxv1.SandboxSpec{Image: image})
		if err != nil {
			return nil, nil, err
		}
		ours = append(ours, time.Since(start))
		remove()
		took, err := engine.ctr(ctx, "image", "pull", "--plain-http", image)
		if err != nil {
			return nil, nil, err
		}
		theirs = append(theirs, took)
		if _, err := engine.ctr(ctx, "image", "rm", "--sync", image); err != nil {
			return nil, nil, err
		}
	}
	return ours, theirs, nil
}

// imageCreations measures both in turns.
func imageCreations(ctx context.Context, b *bench, image string) (with, without report.Samples, err error) {
	for i := range b.count(20) + 2 {
		for _, c := range []struct {
			image string
			to    *report.Samples
		}{{image, &with}, {"", &without}} {
			id := fmt.Sprintf("bench-image-%d-%t", i, c.image != "")
			start := time.Now()
			remove, err := b.sandboxWith(ctx, id, &sandboxv1.SandboxSpec{Image: c.image})
			if err != nil {
				return nil, nil, err
			}
			err = complete(ctx, b, id, "true")
			took := time.Since(start)
			remove()
			if err != nil {
				return nil, nil, err
			}
			if i >= 2 { // the first ones fill caches
				*c.to = append(*c.to, took)
			}
		}
	}
	return with, without, nil
}

// pushImages pushes n images of the same layers, each with a digest of its own, and
// returns their names.
func pushImages(host string, size int64, n int) ([]string, error) {
	const layers = 4
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	base, err := makeLayer(func(add func(string, []byte) error) error {
		return errors.Join(add("bin/true", busybox), add("bin/sh", busybox))
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, base)
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range layers {
		layer, err := makeLayer(func(add func(string, []byte) error) error {
			for done, file := int64(0), 0; done < size/layers; file++ {
				data := halfRandom(random, 1<<10+random.IntN(256<<10))
				if err := add(fmt.Sprintf("data/%d/%d/%d", i, file%100, file), data); err != nil {
					return err
				}
				done += int64(len(data))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	var images []string
	for i := range n {
		image := fmt.Sprintf("%s/bench/image:%d", host, i)
		ref, err := name.ParseReference(image)
		if err != nil {
			return nil, err
		}
		one, err := mutate.ConfigFile(img, configOf(img, i))
		if err != nil {
			return nil, err
		}
		if err := remote.Write(ref, one); err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return images, nil
}

func configOf(img v1.Image, i int) *v1.ConfigFile {
	file, err := img.ConfigFile()
	if err != nil {
		return &v1.ConfigFile{}
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config.Env = "linux", runtime.GOARCH, []string{"PATH=/bin", fmt.Sprintf("BENCH=%d", i)}
	return file
}

// halfRandom is data that compresses to about a half, as programs do.
func halfRandom(random *rand.Rand, size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(random.IntN(16))
	}
	return data
}

// makeLayer makes a layer of files, compressed by gzip.
func makeLayer(fill func(add func(name string, data []byte) error) error) (v1.Layer, error) {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	err = fill(func(name string, data []byte) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	})
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil })
}

// containerd is a daemon of the bench's own.
type containerd struct {
	socket string
	daemon *exec.Cmd
}

func startContainerd(ctx context.Context, dir string) (*containerd, error) {
	root, err := os.MkdirTemp(dir, "containerd-")
	if err != nil {
		return nil, err
	}
	c := &containerd{socket: filepath.Join(root, "socket")}
	var out bytes.Buffer
	c.daemon = exec.CommandContext(ctx, "containerd", "--config", "/dev/null", "--root", filepath.Join(root, "root"), "--state", filepath.Join(root, "state"), "--address", c.socket)
	c.daemon.Stdout, c.daemon.Stderr = &out, &out
	if err := c.daemon.Start(); err != nil {
		return nil, err
	}
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if _, err = c.ctr(ctx, "version"); err == nil {
			return c, nil
		}
	}
	c.stop()
	return nil, fmt.Errorf("containerd does not answer: %w: %s", err, out.Bytes())
}

func (c *containerd) stop() {
	_ = c.daemon.Process.Signal(os.Interrupt)
	_ = c.daemon.Wait()
}

// ctr runs ctr and returns how long that took.
func (c *containerd) ctr(ctx context.Context, args ...string) (time.Duration, error) {
	start := time.Now()
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"--address", c.socket}, args...)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("ctr %s: %w: %s", args[0], err, out)
	}
	return time.Since(start), nil
}
