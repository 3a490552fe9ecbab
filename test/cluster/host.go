package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// host is what a cluster changes outside its directory, as it was before.
type host struct {
	Sysctls map[string]string `json:"sysctls"`
	Absent  []string          `json:"absent"` // directories that did not exist
}

// sysctls are the kernel settings that the kubelet and the bridge plugin set.
var sysctls = []string{
	"kernel/keys/root_maxbytes",
	"kernel/keys/root_maxkeys",
	"kernel/panic",
	"kernel/panic_on_oops",
	"net/ipv4/ip_forward",
	"vm/overcommit_memory",
	"vm/panic_on_oom",
}

// shared are the directories outside the cluster's own that its programs write
// to, whatever they are told. What lies in another comes before it.
var shared = []string{
	"/run/containerd/s",
	"/run/containerd",
	"/run/netns",
	"/tmp/hostpath_pv",
	"/usr/libexec/kubernetes",
	"/var/lib/cni/results",
	"/var/lib/cni",
	"/var/lib/kubelet/device-plugins",
	"/var/lib/kubelet",
	"/var/log/containers",
}

func remember() host {
	h := host{Sysctls: map[string]string{}}
	for _, name := range sysctls {
		if data, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			h.Sysctls[name] = strings.TrimSpace(string(data))
		}
	}
	for _, dir := range shared {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			h.Absent = append(h.Absent, dir)
		}
	}
	return h
}

// restore puts the machine's settings back and removes the cluster's traces from
// directories that it shares with others. A directory that was not there before
// goes too, unless somebody else uses it by now. Nothing may run any more.
func (c *cluster) restore() error {
	var errs []error
	for name, value := range c.state.Host.Sysctls {
		path := filepath.Join("/proc/sys", name)
		if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) != value {
			errs = append(errs, os.WriteFile(path, []byte(value), 0o644))
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	errs = append(errs, err)
	for pattern, ours := range map[string]func(path string) bool{
		"/run/containerd/s/*": func(path string) bool {
			return sockets != nil && !bytes.Contains(sockets, []byte(path+"\n"))
		},
		"/var/lib/cni/results/*-*": c.network,
		"/var/log/containers/*": func(path string) bool {
			target, err := os.Readlink(path)
			return err == nil && strings.HasPrefix(target, c.dir+"/")
		},
	} {
		paths, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, path := range paths {
			if ours(path) {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	// Only a kubelet and a controller manager write there, and they do not say for
	// which cluster.
	theirs := map[string]bool{"/tmp/hostpath_pv": true, "/usr/libexec/kubernetes": true, "/var/lib/kubelet/device-plugins": true}
	alone, err := noKubelet()
	errs = append(errs, err)
	for _, dir := range c.state.Host.Absent {
		switch {
		case !theirs[dir]:
			_ = os.Remove(dir) // if empty
		case alone:
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// noKubelet reports whether no other cluster's kubelet runs on this machine.
func noKubelet() (bool, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		program, _, _ := bytes.Cut(line, []byte{0})
		if filepath.Base(string(program)) == "kubelet" {
			return false, nil
		}
	}
	return err == nil, err
}

// network reports whether a file of CNI's is about a pod of this cluster, whose
// network bears its name. The loopback's file tells by the pod's other file.
func (c *cluster) network(path string) bool {
	dir, name := filepath.Split(path)
	if pod, ok := strings.CutPrefix(name, "cni-loopback-"); ok {
		name = c.state.Name + "-" + strings.TrimSuffix(pod, "-lo") + "-eth0"
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	return strings.HasPrefix(name, c.state.Name+"-")
}
