package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// AttachLoop makes a loop device of a file. The device detaches itself when the
// returned file is closed and nothing has it mounted, so nothing has to be
// undone, not even after a kill -9.
//
// Where possible it uses direct I/O past the page cache of the host's file
// system: the disk's own pages are cached already, and a second copy makes
// fsync several times slower.
func AttachLoop(path string) (*os.File, error) {
	back, err := openNameless(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = back.Close() }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	config := unix.LoopConfig{Fd: uint32(back.Fd())}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		_ = dev.Close()
		// Another process attached the same free device first.
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to %s: %w", path, dev.Name(), err)
		}
	}
}

// openNameless opens a file through a mount that is attached nowhere, so that
// the kernel knows no path of it but its last name.
// /sys/block/loopN/loop/backing_file shows the path to every process, in
// sandboxes too.
func openNameless(path string) (*os.File, error) {
	dir, err := unix.OpenTree(unix.AT_FDCWD, filepath.Dir(path), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Dir(path), err)
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat(dir, filepath.Base(path), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// loopHolds reports whether a loop device still has this file.
func loopHolds(dev, path string) bool {
	var file unix.Stat_t
	if unix.Stat(path, &file) != nil {
		return false
	}
	f, err := os.OpenFile(dev, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	return err == nil && info.Inode == file.Ino && info.Device == file.Dev
}

// WaitDetached waits a short while for the kernel to detach a disk, which
// happens in the background once the last process is gone. A caller that counts
// loop devices after a deletion then finds none.
func WaitDetached(ctx context.Context, dev, image string) {
	deadline := time.Now().Add(2 * time.Second)
	for wait := 500 * time.Microsecond; loopHolds(dev, image) && time.Now().Before(deadline); wait = min(2*wait, 20*time.Millisecond) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
