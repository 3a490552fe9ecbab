package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clear stops the cluster and leaves nothing of it: no process, mount, network,
// cgroup or file. It does what it can and reports all that it could not.
func (c *cluster) clear(ctx context.Context) error {
	errs := []error{c.stopAll(ctx)}
	networks := c.networks()
	errs = append(errs, c.killLeft(), c.unmountAll(networks), c.removeBridge(), c.removeCgroups(), c.restore())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.state = state{}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(c.path(entry.Name())))
	}
	return errors.Join(errs...)
}

// stopAll ends the components in the order in which none can undo what another has
// done: containerd last, after it has removed the pods.
func (c *cluster) stopAll(ctx context.Context) error {
	var errs []error
	parts := c.components()
	slices.Reverse(parts)
	for _, component := range parts {
		switch component.name {
		case "containerd", "etcd":
		case networkPolicy:
			errs = append(errs, c.kill(component.name, syscall.SIGTERM)) // it removes its rules
		default:
			errs = append(errs, c.kill(component.name, syscall.SIGKILL))
		}
	}
	containerd, err := c.component("containerd")
	if err != nil {
		return err
	}
	if _, err := os.Stat(containerd.argv[1][len("--config="):]); err == nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		// Without containerd, what is left is swept up: slower to say, same end.
		if err := c.start(ctx, containerd); err == nil {
			errs = append(errs, c.removePods(ctx))
		}
		errs = append(errs, c.kill("containerd", syscall.SIGTERM))
	}
	return errors.Join(append(errs, c.kill("etcd", syscall.SIGKILL))...)
}

// killLeft ends every process that was started with a path in the cluster's
// directory: shims and the containers that they hold.
func (c *cluster) killLeft() error {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00"+c.socket())) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return c.killCgroups()
}

// unmountAll unmounts what lies in the cluster's directory, and the given network
// namespaces: those of pods that containerd could not remove.
func (c *cluster) unmountAll(networks map[string]bool) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, line := range slices.Backward(lines) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		path := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		ours := strings.HasPrefix(path, c.dir+"/")
		namespace := networks[fields[3]]
		if !ours && !namespace {
			continue
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		} else if namespace {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
