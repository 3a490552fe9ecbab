package local

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

	"github.com/sandgate/sandgate/providers/local/atomicfile"
	"github.com/sandgate/sandgate/providers/local/lock"

	"golang.org/x/sys/unix"
)

const diskUnit = 1 << 20

// disks makes the file systems that bound what a sandbox can write.
type disks struct {
	dir    string
	mkfs   string
	reason string // why disks cannot be made; empty when they can
	making *lock.Table
}

func newDisks(l layout, making *lock.Table) *disks {
	d := &disks{dir: l.disks(), making: making}
	path, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		d.reason = "mkfs.ext4 is not installed"
		return d
	}
	d.mkfs = path
	if err := canMount(); err != nil {
		d.reason = err.Error()
	}
	return d
}

// image makes a sparse file system image for one sandbox at path.
func (d *disks) image(ctx context.Context, size int64, path string) error {
	for {
		template, err := d.template(ctx, diskSize(size)/diskUnit)
		if err != nil {
			return err
		}
		// Another server may have collected the template meanwhile.
		if err := copySparse(template, path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// diskSize rounds a size up to one of eight between a power of two and the next.
// Callers choose sizes, and each one costs a template.
func diskSize(size int64) int64 {
	step := int64(diskUnit)
	for size > 16*step {
		step *= 2
	}
	return (size + step - 1) / step * step
}

// template returns an empty file system of a size in units, made on first use.
func (d *disks) template(ctx context.Context, units int64) (string, error) {
	name := templatePrefix + strconv.FormatInt(units, 10) + "m"
	path := filepath.Join(d.dir, name)
	if isExt4(path) {
		// The least recently used are collected.
		now := time.Now()
		_ = os.Chtimes(path, now, now)
		return path, nil
	}
	held, err := d.making.Acquire(ctx, "_disk-"+name)
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
	if err := os.Truncate(part, units*diskUnit); err != nil {
		return "", err
	}
	// No journal: it would only help a disk that outlives a crash of the
	// machine, which no sandbox does. No blocks are kept for root, and inodes
	// are many because agents unpack source trees.
	cmd := exec.CommandContext(ctx, d.mkfs, "-q", "-F", "-m", "0", "-i", "8192", "-O", "^has_journal,^resize_inode",
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
	return path, d.collect(name)
}

const (
	templatePrefix = "ext4-"
	// keptTemplates bounds what templates hold on the host's disk.
	keptTemplates = 16
)

// collect removes the templates beyond keptTemplates that were not used for the
// longest time. Sandboxes have copies.
func (d *disks) collect(made string) error {
	entries, err := os.ReadDir(d.dir)
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
		if err := os.Remove(filepath.Join(d.dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// place is a writable directory of a sandbox, kept on its disk.
type place struct {
	dir    string // below the disk's root
	target string // inside the sandbox; empty: not mounted as it is
	mode   fs.FileMode
	owned  bool // by the sandbox's user, else by root
}

// places are the writable directories. Names must not change while sandboxes
// of an older version may run.
var places = []place{
	{dir: "workspace", target: "/workspace", mode: 0o755, owned: true},
	{dir: "home", target: "/home/sandbox", mode: 0o750, owned: true},
	{dir: "tool-results", target: "/large_tool_results", mode: 0o755, owned: true},
	{dir: "history", target: "/conversation_history", mode: 0o755, owned: true},
	{dir: "tmp", target: "/tmp", mode: 0o777 | fs.ModeSticky},
	{dir: "var-tmp", target: "/var/tmp", mode: 0o777 | fs.ModeSticky},
	{dir: "state", target: agentState, mode: 0o700, owned: true},
	{dir: "upper", mode: 0o755},
	{dir: "work", mode: 0o700},
}

func makePlaces(root string, uid, gid uint32) error {
	for _, p := range places {
		dir := filepath.Join(root, p.dir)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(dir, p.mode); err != nil {
			return err
		}
		if p.owned {
			if err := os.Chown(dir, int(uid), int(gid)); err != nil {
				return err
			}
		}
	}
	return nil
}
