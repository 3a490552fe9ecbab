package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// removeGroup kills the processes of a cgroup and removes it with all cgroups
// below. It retries until the killed processes have exited.
func removeGroup(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		killGroup(dir)
		err := removeGroupTree(ctx, dir)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w: %w", dir, err, context.Cause(ctx))
		}
	}
}

// killGroup kills stray processes. Usually there are none.
func killGroup(dir string) {
	if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	for _, pid := range readProcs(dir) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// removeGroupTree removes a cgroup and all cgroups below it. Commands may have
// made those, so their paths can be longer than a system call accepts: every step
// is relative to a descriptor. Only one directory is open at a time, so the depth
// is not bounded by the limit on open files either.
func removeGroupTree(ctx context.Context, dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	fd, openErr := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if openErr != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	at := os.NewFile(uintptr(fd), dir)
	defer func() { _ = at.Close() }()
	// Each level holds the names still to remove. The last name of each level
	// but the deepest is the cgroup that was entered.
	var levels [][]string
	for {
		names, err := subgroups(at)
		if err != nil {
			return fmt.Errorf("remove cgroups below %s: %w", dir, err)
		}
		levels = append(levels, names)
		for len(levels[len(levels)-1]) == 0 {
			levels = levels[:len(levels)-1]
			if len(levels) == 0 {
				if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("remove cgroup %s: %w", dir, err)
				}
				return nil
			}
			if at, err = enterGroup(at, ".."); err != nil {
				return fmt.Errorf("remove cgroups below %s: %w", dir, err)
			}
			level := &levels[len(levels)-1]
			last := len(*level) - 1
			err := unix.Unlinkat(int(at.Fd()), (*level)[last], unix.AT_REMOVEDIR)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove a cgroup below %s: %w", dir, err)
			}
			*level = (*level)[:last]
		}
		if ctx.Err() != nil {
			return fmt.Errorf("remove cgroups below %s: %w", dir, context.Cause(ctx))
		}
		level := levels[len(levels)-1]
		if at, err = enterGroup(at, level[len(level)-1]); err != nil {
			return fmt.Errorf("remove cgroups below %s: %w", dir, err)
		}
	}
}

// enterGroup opens a directory relative to another and closes that one.
func enterGroup(at *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(at.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return at, err
	}
	_ = at.Close()
	return os.NewFile(uintptr(fd), name), nil
}

// subgroups removes the cgroups directly below that have none themselves, and
// returns the names of the others.
func subgroups(dir *os.File) ([]string, error) {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		err := unix.Unlinkat(int(dir.Fd()), e.Name(), unix.AT_REMOVEDIR)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
