package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killCgroups ends what runs in a pod's cgroup and waits until it is gone.
func (c *cluster) killCgroups() error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := c.processes()
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes of pods do not end: %v", left)
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processes are those of all pods.
func (c *cluster) processes() []int {
	var pids []int
	for _, root := range c.cgroups() {
		// What has gone meanwhile is no error.
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return nil
			}
			data, _ := os.ReadFile(path)
			for field := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// networks are the network namespaces of all pods, as "net:[NUMBER]".
func (c *cluster) networks() map[string]bool {
	found := map[string]bool{}
	for _, pid := range c.processes() {
		if name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil {
			found[name] = true
		}
	}
	if own, err := os.Readlink("/proc/self/ns/net"); err == nil {
		delete(found, own)
	}
	return found
}

// cgroups are the parents of all pods' cgroups, one in each hierarchy that has one.
func (c *cluster) cgroups() []string {
	one, _ := filepath.Glob("/sys/fs/cgroup/" + c.state.Name)
	each, _ := filepath.Glob("/sys/fs/cgroup/*/" + c.state.Name)
	return append(one, each...)
}

// makeCgroups makes them. The kubelet wants its root to exist in every hierarchy.
func (c *cluster) makeCgroups() error {
	roots := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		if roots, err = filepath.Glob("/sys/fs/cgroup/*"); err != nil {
			return err
		}
	}
	for _, root := range roots {
		if info, err := os.Lstat(root); err != nil || !info.IsDir() {
			continue // a second name of another one
		}
		path := filepath.Join(root, c.state.Name)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (c *cluster) removeCgroups() error {
	var errs []error
	for _, root := range c.cgroups() {
		var dirs []string
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		errs = append(errs, err)
		for _, dir := range slices.Backward(dirs) {
			errs = append(errs, os.Remove(dir))
		}
	}
	return errors.Join(errs...)
}
