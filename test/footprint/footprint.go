//go:build linux

// Package footprint finds what the sandboxes of one server with the local provider
// hold on the machine: processes, cgroups, mounts, loop devices and files.
package footprint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Server is where a server keeps its sandboxes. It is safe for concurrent use.
type Server struct {
	dir, cgroup string

	mu    sync.Mutex
	disks map[disk]bool // that Loops has seen
}

// New returns the server whose state directory is DIR/state. The parent cgroup of its
// sandboxes, such as "/sandgate-test", must be no other server's.
func New(dir, cgroup string) *Server {
	return &Server{dir: dir, cgroup: cgroup, disks: make(map[disk]bool)}
}

// Process is a process in one of the sandboxes.
type Process struct {
	ID             int
	Agent, Connect bool
	Args           string
}

// Processes returns the processes in the sandboxes, by their cgroups.
func (s *Server) Processes() []Process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []Process
	for _, dir := range dirs {
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !bytes.Contains(group, []byte(s.cgroup+"/")) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		p := Process{ID: pid, Args: strings.Join(args, " ")}
		if len(args) > 1 && args[0] == "/.sandgate/agent" {
			p.Agent, p.Connect = args[1] == "serve", args[1] == "connect"
		}
		found = append(found, p)
	}
	return found
}

// Resident returns the resident memory of the process in bytes, or 0 if it has ended.
func (p Process) Resident() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.ID))
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// parents returns the directories of the parent cgroup in all hierarchies.
func (s *Server) parents() []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup" + s.cgroup, "/sys/fs/cgroup/*" + s.cgroup} {
		dirs, _ := filepath.Glob(pattern)
		found = append(found, dirs...)
	}
	return found
}

// Cgroups returns the directories of the sandboxes' cgroups and of those below them, in
// all hierarchies.
func (s *Server) Cgroups() []string {
	var found []string
	for _, parent := range s.parents() {
		_ = filepath.WalkDir(parent, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && path != parent {
				found = append(found, path)
			}
			return nil // It is gone already.
		})
	}
	return found
}

// RemoveCgroup removes the parent cgroup, once the server has ended.
func (s *Server) RemoveCgroup() error {
	var errs []error
	for _, parent := range s.parents() {
		errs = append(errs, os.Remove(parent))
	}
	return errors.Join(errs...)
}

// Mounts counts the mounts of the sandboxes, each of which has a mount namespace, and
// those below the server's directory in the machine's.
func (s *Server) Mounts() int {
	count, namespaces := len(s.machineMounts()), map[string]bool{}
	for _, p := range s.Processes() {
		namespace, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.ID))
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", p.ID))
		if err == nil && !namespaces[namespace] {
			namespaces[namespace] = true
			count += bytes.Count(text, []byte("\n"))
		}
	}
	return count
}

// machineMounts returns the mounts below the server's directory that every process of
// the machine sees. No sandbox should have any.
func (s *Server) machineMounts() (found []string) {
	text, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, s.dir+"/") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// disk identifies a file.
type disk struct{ device, inode uint64 }

// Loops returns the loop devices of the sandboxes' disks, and of those disks of deleted
// sandboxes that an earlier call has seen: the kernel shows no more of a disk's path
// than its name.
func (s *Server) Loops() []string {
	images, _ := filepath.Glob(filepath.Join(s.dir, "state/local/*/*/disk.ext4"))
	now := map[disk]bool{}
	for _, image := range images {
		var stat unix.Stat_t
		if unix.Stat(image, &stat) == nil {
			now[disk{stat.Dev, stat.Ino}] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.disks, now)
	var found []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		device := strings.Split(file, "/")[3]
		at, err := loopDisk("/dev/" + device)
		deleted := bytes.HasSuffix(bytes.TrimSpace(backing), []byte("(deleted)"))
		if err == nil && (now[at] || deleted && s.disks[at]) {
			found = append(found, fmt.Sprintf("%s of %s", device, bytes.TrimSpace(backing)))
		}
	}
	return found
}

// loopDisk returns the file of a loop device.
func loopDisk(device string) (disk, error) {
	f, err := os.Open(device)
	if err != nil {
		return disk{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return disk{}, err
	}
	return disk{info.Device, info.Inode}, nil
}

// Files counts the files and directories below the server's directory that are on its
// file system, so without those on the sandboxes' disks.
func (s *Server) Files() (count int) {
	device := func(path string) (uint64, bool) {
		var stat unix.Stat_t
		err := unix.Lstat(path, &stat)
		return stat.Dev, err == nil
	}
	own, _ := device(s.dir)
	_ = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // It is gone already.
		}
		if d.IsDir() {
			if at, ok := device(path); !ok || at != own {
				return filepath.SkipDir
			}
		}
		count++
		return nil
	})
	return count
}

// Left returns an error for each process, cgroup, mount and loop device of deleted
// sandboxes that remains after a minute. No sandbox may be left.
func (s *Server) Left() (errs []error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		errs = nil
		for _, p := range s.Processes() {
			errs = append(errs, fmt.Errorf("process %d is left after delete: %s", p.ID, p.Args))
		}
		for _, group := range s.Cgroups() {
			errs = append(errs, fmt.Errorf("cgroup %s is left after delete", group))
		}
		for _, mount := range s.machineMounts() {
			errs = append(errs, fmt.Errorf("mount is left after delete: %s", mount))
		}
		for _, loop := range s.Loops() {
			errs = append(errs, fmt.Errorf("loop device is left after delete: %s", loop))
		}
		if len(errs) == 0 || time.Now().After(deadline) {
			return errs
		}
	}
}
