package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	confined "github.com/containerd/continuity/fs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// The limits of one unpacked image.
const (
	maxBytes   = 32 << 30
	maxEntries = 500_000
)

const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
	xattrRecord    = "SCHILY.xattr."
)

// unpacker unpacks the layers of an image below a directory. An image is
// untrusted: archive.Apply resolves names as the image's own processes would,
// and the unpacker adds limits, checks digests and drops what an image must not
// contain.
type unpacker struct {
	root    string
	files   int64 // bytes of files still allowed
	stream  int64 // bytes of uncompressed layers still allowed
	entries int
	// admit, if set, returns an error for a file for which there is no space.
	admit func(size int64) error
}

func newUnpacker(root string) *unpacker {
	return &unpacker{root: root, files: maxBytes, stream: maxBytes, entries: maxEntries}
}

// image unpacks all layers and checks their digests.
func (u *unpacker) image(ctx context.Context, files fileSet, layers []layer, diffIDs []v1.Hash) error {
	for i, l := range layers {
		f, size, err := files.open(l.file)
		if err != nil {
			return err
		}
		if l.digest != "" && size != l.size {
			err = fmt.Errorf("%s has %d bytes instead of %d: %w", l.file, size, l.size, providers.ErrStartFailed)
		} else {
			err = u.verified(ctx, f, l, diffIDs[i])
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// verified unpacks a layer and checks its digests. A layer with other content
// has been unpacked by then; the caller removes it all.
func (u *unpacker) verified(ctx context.Context, raw io.Reader, l layer, diffID v1.Hash) error {
	file, plain := sha256.New(), sha256.New()
	in := bufio.NewReader(io.TeeReader(raw, file))
	plainLayer, err := decompress(in)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", l.file, err, providers.ErrStartFailed)
	}
	defer plainLayer.Close()
	out := io.TeeReader(&boundedReader{ctx: ctx, in: plainLayer, left: &u.stream}, plain)
	if err := u.apply(ctx, out); err != nil {
		return err
	}
	// The digests include the bytes after the end of the archive.
	for _, rest := range []io.Reader{out, in} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return unpackError(ctx, err)
		}
	}
	if got := hex.EncodeToString(plain.Sum(nil)); diffID.Algorithm != "sha256" || got != diffID.Hex {
		return fmt.Errorf("layer %s unpacks to sha256:%s instead of %s: %w", l.file, got, diffID, providers.ErrStartFailed)
	}
	if got := hex.EncodeToString(file.Sum(nil)); l.digest != "" && got != l.digest {
		return fmt.Errorf("layer %s does not match its digest: %w", l.file, providers.ErrStartFailed)
	}
	return nil
}

// maxWindow is the maximum memory for a zstd layer.
const maxWindow = 64 << 20

// decompress detects gzip and zstd by their first bytes. Any other layer is
// uncompressed.
func decompress(in *bufio.Reader) (io.ReadCloser, error) {
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// boundedReader fails when the context has ended or the limit is reached.
type boundedReader struct {
	ctx  context.Context //nolint:containedctx // it lives for one call
	in   io.Reader
	left *int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	n, err := b.in.Read(p)
	if *b.left -= int64(n); *b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

var (
	errTooLarge       = fmt.Errorf("the image unpacks to more than %d bytes: %w", int64(maxBytes), providers.ErrExhausted)
	errTooManyEntries = fmt.Errorf("the image has more than %d entries: %w", maxEntries, providers.ErrExhausted)
)

// apply applies one uncompressed layer.
func (u *unpacker) apply(ctx context.Context, r io.Reader) error {
	own := map[string]bool{}
	_, err := archive.Apply(ctx, u.root, r, archive.WithFilter(u.filter), archive.WithConvertWhiteout(func(h *tar.Header, path string) (bool, error) {
		return u.convert(h, path, own)
	}))
	return unpackError(ctx, err)
}

// unpackError wraps ErrStartFailed around errors that the image causes: all but a
// canceled call, a limit, a full disk and a registry that fails.
func unpackError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isOurs(err), errors.Is(err, unix.EIO):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("unpack the image: %w: %w", err, providers.ErrExhausted)
	}
	return fmt.Errorf("unpack the image: %w: %w", err, providers.ErrStartFailed)
}

// filter accepts, changes or drops an entry before it is unpacked.
func (u *unpacker) filter(h *tar.Header) (bool, error) {
	if u.entries--; u.entries < 0 {
		return false, errTooManyEntries
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if u.files -= h.Size; u.files < 0 {
			return false, errTooLarge
		}
		if u.admit != nil {
			if err := u.admit(h.Size); err != nil {
				return false, err
			}
		}
	case tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	default:
		// Devices and pipes: a sandbox has its own devices and no right to more.
		return false, nil
	}
	if h.Uid < 0 || h.Gid < 0 {
		return false, fmt.Errorf("%q has the owner %d:%d: %w", h.Name, h.Uid, h.Gid, providers.ErrStartFailed)
	}
	// Drop set-id bits and attributes that the kernel interprets: sandboxes
	// gain no privileges, and the host must not.
	h.Mode &^= 0o6000
	for key := range h.PAXRecords {
		if attr, ok := strings.CutPrefix(key, xattrRecord); ok && !strings.HasPrefix(attr, "user.") {
			delete(h.PAXRecords, key)
		}
	}
	return true, nil
}

// convert applies a whiteout, or records a path that the layer adds. A whiteout
// hides what lower layers have, never what its own layer adds before or after it.
func (u *unpacker) convert(h *tar.Header, path string, own map[string]bool) (bool, error) {
	dir, base := filepath.Split(path)
	dir = filepath.Clean(dir)
	if base == opaqueWhiteout {
		return false, clearDir(dir, own)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		if hidden == "" || hidden == "." || hidden == ".." {
			return false, fmt.Errorf("a whiteout of %q: %w", hidden, providers.ErrStartFailed)
		}
		if at := filepath.Join(dir, hidden); !own[at] {
			return false, os.RemoveAll(at)
		}
		return false, nil
	}
	if h.Typeflag == tar.TypeLink {
		u.keepTarget(h)
	}
	for p := path; p != u.root && !own[p]; p = filepath.Dir(p) {
		// Apply also makes parents without an entry.
		if p != path {
			if u.entries--; u.entries < 0 {
				return false, errTooManyEntries
			}
		}
		own[p] = true
	}
	return true, nil
}

// keepTarget keeps a hard link from changing the file that it names: some
// archivers write no mode and times for links.
func (u *unpacker) keepTarget(h *tar.Header) {
	dir, base := filepath.Split(h.Linkname)
	dir, err := confined.RootPath(u.root, dir)
	if err != nil {
		return
	}
	info, err := os.Lstat(filepath.Join(dir, filepath.Join("/", base)))
	if err != nil {
		return // Apply returns the error
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(owner.Uid), int(owner.Gid)
	}
	mode := int64(info.Mode().Perm())
	if info.Mode()&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	h.Mode, h.ModTime, h.AccessTime, h.PAXRecords = mode, info.ModTime(), time.Time{}, nil
}

// clearDir removes the entries of lower layers from a directory.
func clearDir(dir string, own map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		switch {
		case !own[at]:
			err = errors.Join(err, os.RemoveAll(at))
		case e.IsDir():
			err = errors.Join(err, clearDir(at, own))
		}
	}
	return err
}
