package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// idleMemory reads the anonymous memory of the agent, and of `connect` where the
// provider uses it, in a sandbox that worked and is idle now.
func idleMemory(ctx context.Context, b *bench) ([]report.Figure, error) {
	remove, err := b.sandbox(ctx, "bench-memory")
	if err != nil {
		return nil, err
	}
	defer remove()
	for range b.count(10_000) {
		if err := complete(ctx, b, "bench-memory", "true"); err != nil {
			return nil, err
		}
	}
	size := b.size(64 << 20)
	argv := []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}
	if err := drainExecute(ctx, b.client, "bench-memory", argv, size); err != nil {
		return nil, err
	}
	if _, err := upload(ctx, b.client, "bench-memory", make([]byte, 256<<10), size); err != nil {
		return nil, err
	}
	if _, err := b.client.ListProcesses(ctx, &sandboxv1.ListProcessesRequest{SandboxId: "bench-memory"}); err != nil {
		return nil, err
	}
	// Idle means that nothing has run for a while: the agent gives memory back
	// when it has been without a command for 2 s.
	select {
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	pids, err := agentProcesses("bench-memory")
	if err != nil {
		return nil, err
	}
	var total int64
	for _, pid := range pids {
		anonymous, err := anonymousBytes(pid)
		if err != nil {
			return nil, err
		}
		total += anonymous
	}
	mib := float64(total) / (1 << 20)
	return []report.Figure{{
		What: "idle sandbox, anonymous memory after 10 000 runs", Ours: fmt.Sprintf("%.1f MiB", mib),
		Ratio: mib, Must: report.UpTo(11, "MiB"), Goal: report.UpTo(8, "MiB"),
	}}, nil
}

// agentProcesses finds a sandbox's agent, and `connect`, by their executable and
// by the cgroup that bears the sandbox's name; other sandboxes of the machine
// have the same executable.
func agentProcesses(sandbox string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		target, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || !strings.Contains(target, "agent") {
			continue // gone, a kernel thread, or another program
		}
		groups, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if err == nil && strings.Contains(string(groups), sandbox) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no agent of %s found", sandbox)
	}
	return pids, nil
}

func anonymousBytes(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Anonymous:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("pid %d: no anonymous memory in smaps_rollup: %w", pid, lines.Err())
}
