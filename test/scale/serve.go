//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/cluster"
)

// server is a server, and what the kernel says of its process.
type server struct{ *cluster.Server }

func (c *scene) serve(ctx context.Context, binary, provider, namespace, kubeconfig, config string) (server, error) {
	dir, err := os.MkdirTemp(c.dir, "server-")
	if err != nil {
		return server{}, err
	}
	order := cluster.Order{
		Binary: binary, Directory: dir, Kubeconfig: kubeconfig, Provider: provider, Namespace: namespace, Config: config,
	}
	if provider == "kubernetes" {
		order.Flags = []string{"--kubernetes-image", c.image}
	}
	s, err := cluster.Serve(ctx, order)
	return server{s}, err
}

// memory returns what the kernel says of the process, in bytes.
func (s server) memory(field string) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", s.Process.Pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

// cpu returns the processor time that the process has used.
func (s server) cpu() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}
