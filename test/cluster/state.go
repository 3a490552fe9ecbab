package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// cluster is one Kubernetes of this machine. What it is lies in its directory. What
// cannot lie there bears its name.
type cluster struct {
	dir   string // absolute
	exe   string // this binary, which is also all of Kubernetes
	state state
	lock  *os.File
}

// state is what a cluster remembers between two commands.
type state struct {
	Boot   string `json:"boot"`   // the boot of the machine that it runs in
	Name   string `json:"name"`   // of the pods' network interface, and of their cgroup
	Subnet string `json:"subnet"` // the pods' addresses
	Ports  ports  `json:"ports"`  // all on 127.0.0.1
	Host   host   `json:"host"`   // what "down" gives back
}

type ports struct {
	API, Etcd, EtcdPeer, Kubelet, KubeletHealth, Sandbox int
}

// open takes the directory for this process alone, until it ends or close is
// called, and reads what it remembers. A new directory is made.
func open(dir string) (*cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, exe: exe}
	if c.lock, err = lock(dir); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(c.path("cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &c.state)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

// lock holds a directory. The one that waited may find that "down" has removed
// what it holds by then, and takes the new one.
func lock(dir string) (*os.File, error) {
	for {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		file, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			file.Close()
			return nil, err
		}
		held, err1 := file.Stat()
		now, err2 := os.Stat(dir)
		if err1 == nil && err2 == nil && os.SameFile(held, now) {
			return file, nil
		}
		file.Close()
	}
}

func (c *cluster) close() { c.lock.Close() }

// exists reports whether the directory holds a cluster, running or not.
func (c *cluster) exists() bool { return c.state.Boot != "" }

func (c *cluster) save() error {
	data, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("cluster.json"), append(data, '\n'), 0o600)
}

func (c *cluster) path(name ...string) string {
	return filepath.Join(append([]string{c.dir}, name...)...)
}

// beside is the path of something that was built together with this binary.
func (c *cluster) beside(name ...string) string {
	return filepath.Join(append([]string{filepath.Dir(c.exe)}, name...)...)
}

// initialise gives a new cluster its name, addresses and ports, and notes how the
// machine was before.
func (c *cluster) initialise() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	sum := fnv.New32a()
	sum.Write([]byte(c.dir))
	c.state = state{Boot: boot, Name: fmt.Sprintf("sandgate%06x", sum.Sum32()&0xffffff), Host: remember()}
	if c.state.Subnet, err = freeSubnet(); err != nil {
		return err
	}
	next := 26443
	for _, port := range []*int{
		&c.state.Ports.API, &c.state.Ports.Etcd, &c.state.Ports.EtcdPeer,
		&c.state.Ports.Kubelet, &c.state.Ports.KubeletHealth, &c.state.Ports.Sandbox,
	} {
		if next, err = freePort(next); err != nil {
			return err
		}
		*port = next
		next++
	}
	return c.save()
}

// freePort finds a port below those that the kernel gives to clients, so that it
// is still free when a component is started again.
func freePort(from int) (int, error) {
	var config net.ListenConfig
	for port := from; port < 32768; port++ {
		listener, err := config.Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free port from %d on", from)
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
