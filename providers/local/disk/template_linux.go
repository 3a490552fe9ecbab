package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

// Maker makes the file systems that limit how much a sandbox can write. Each is
// a copy of a template, an empty file system of its size.
type Maker struct {
	dir    string // of the templates
	mkfs   string
	reason string
	locks  *lock.Table
}

// NewMaker checks that disks can be made and mounted on this machine.
func NewMaker(dir string, locks *lock.Table) *Maker {
	m := &Maker{dir: dir, locks: locks}
	path, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		m.reason = "mkfs.ext4 is not installed"
		return m
	}
	m.mkfs = path
	if err := canMount(); err != nil {
		m.reason = err.Error()
	}
	return m
}

// Unavailable returns why no disk can be made; empty if disks can be made.
func (m *Maker) Unavailable() string { return m.reason }

// Make makes a sparse file system image for one sandbox at path.
func (m *Maker) Make(ctx context.Context, size int64, path string) error {
	for {
		template, err := m.template(ctx, RoundUp(size)/unit)
		if err != nil {
			return err
		}
		// Another server may have removed the template meanwhile.
		if err := copySparse(template, path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// template returns an empty file system of a size in units, made on first use.
func (m *Maker) template(ctx context.Context, units int64) (string, error) {
	name := templatePrefix + strconv.FormatInt(units, 10) + "m"
	path := filepath.Join(m.dir, name)
	if isExt4(path) {
		// The least recently used templates are removed.
		now := time.Now()
		_ = os.Chtimes(path, now, now)
		return path, nil
	}
	held, err := m.locks.Acquire(ctx, "_disk-"+name)
	if err != nil {
		return "", err
	}
	defer held.Release(true)
	if isExt4(path) {
		return path, nil
	}
	part := path + ".part"
	defer func() { _ = os.Remove(part) }()
	if err := os.WriteFile(part, nil, 0o600); err != nil {
		return "", err
	}
	if err := os.Truncate(part, units*unit); err != nil {
		return "", err
	}
	// No journal: it only helps a disk that outlives a crash of the machine,
	// and no sandbox does. No blocks are reserved for root. There are many
	// inodes because AI agents unpack source trees.
	cmd := exec.CommandContext(ctx, m.mkfs, "-q", "-F", "-m", "0", "-i", "8192", "-O", "^has_journal,^resize_inode",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", part)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	if err := atomicfile.Sync(part); err != nil {
		return "", err
	}
	if err := os.Rename(part, path); err != nil {
		return "", err
	}
	return path, m.collect(name)
}

const (
	templatePrefix = "ext4-"
	// keptTemplates limits the space that templates take.
	keptTemplates = 16
)

// collect removes the least recently used templates beyond keptTemplates.
// Sandboxes have copies.
func (m *Maker) collect(made string) error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	var old []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), templatePrefix) && !strings.HasSuffix(e.Name(), ".part") && e.Name() != made {
			old = append(old, info)
		}
	}
	slices.SortFunc(old, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for i, info := range old {
		if i < keptTemplates-1 {
			continue
		}
		if err := os.Remove(filepath.Join(m.dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// isExt4 reports whether a file begins as an ext4 file system does. After a
// power cut a file may have its name and size, but zeros for content.
func isExt4(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	const magicAt = 1024 + 56
	var magic [2]byte
	_, err = f.ReadAt(magic[:], magicAt)
	return err == nil && magic == [2]byte{0x53, 0xef}
}

// copySparse copies a file's data and keeps its holes.
func copySparse(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); at < info.Size(); {
		start, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(in.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := out.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := in.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, end-start); err != nil {
			return err
		}
		at = end
	}
	return nil
}
