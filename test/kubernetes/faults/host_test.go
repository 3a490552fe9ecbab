package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// process is one of a pod, as the node sees it. The node is this machine.
type process struct {
	pid     int
	inside  int // its pid in the pod
	command string
}

// processes are those of a pod's containers, by their cgroup's name.
func processes(t *testing.T, pod types.UID) []process {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []process
	for _, dir := range dirs {
		cgroup, err := os.ReadFile(dir + "/cgroup")
		if err != nil || !bytes.Contains(cgroup, []byte("pod"+pod)) {
			continue
		}
		p := process{}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		command, _ := os.ReadFile(dir + "/cmdline")
		p.command = strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
		status, _ := os.ReadFile(dir + "/status")
		for line := range strings.Lines(string(status)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "NSpid:" {
				p.inside, _ = strconv.Atoi(fields[len(fields)-1])
			}
		}
		if p.command != "/pause" {
			out = append(out, p)
		}
	}
	return out
}

// first is process 1 of the pod's container.
func first(t *testing.T, pod types.UID) process {
	t.Helper()
	for _, p := range processes(t, pod) {
		if p.inside == 1 {
			return p
		}
	}
	t.Fatalf("pod %s has no process 1", pod)
	return process{}
}

// agent is the pod's agent. What it starts may look the same, and comes later.
func agent(t *testing.T, pod types.UID) process {
	t.Helper()
	var found []process
	for _, p := range processes(t, pod) {
		if program, args, _ := strings.Cut(p.command, " "); strings.Contains(program, "agent") && strings.HasPrefix(args, "serve ") {
			found = append(found, p)
		}
	}
	if len(found) > 0 {
		return slices.MinFunc(found, func(a, b process) int { return a.inside - b.inside })
	}
	t.Fatalf("pod %s has no agent among %v", pod, processes(t, pod))
	return process{}
}
