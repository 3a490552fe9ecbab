//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/cluster"
)

// server is a running server and the kernel's figures of its process.
type server struct{ *cluster.Server }

func (c *testbed) serve(ctx context.Context, binary, provider, namespace, kubeconfig, config string) (server, error) {
	dir, err := os.MkdirTemp(c.dir, "server-")
	if err != nil {
		return server{}, err
	}
	order := cluster.Order{
		Binary: binary, Directory: dir, Kubeconfig: kubeconfig, Provider: provider, Namespace: namespace, Config: config,
	}
	if provider == "kubernetes" {
		order.Flags = []string{"--kubernetes-image", c.image, "--kubernetes-verify-network", "0s"}
	}
	s, err := cluster.Serve(ctx, order)
	return server{s}, err
}

// memory returns a field of the process's memory in bytes, or 0 if it is unknown.
func (s server) memory(field string) int64 {
	n, _ := s.Memory(field)
	return n
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
