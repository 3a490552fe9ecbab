package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// idleMemory reads the anonymous memory of the agent, and of `connect` where the
// provider uses it, in a sandbox that worked and is idle now.
func idleMemory(ctx context.Context, b *bench) ([]figure, error) {
	before, err := agentProcesses()
	if err != nil {
		return nil, err
	}
	remove, err := b.sandbox(ctx, "bench-memory")
	if err != nil {
		return nil, err
	}
	defer remove()
	for range b.count(200) {
		if _, err := collect(ctx, b, "bench-memory", "true"); err != nil {
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
	after, err := agentProcesses()
	if err != nil {
		return nil, err
	}
	var total int64
	for pid := range after {
		if before[pid] {
			continue
		}
		anonymous, err := anonymousBytes(pid)
		if err != nil {
			return nil, err
		}
		total += anonymous
	}
	mib := float64(total) / (1 << 20)
	return []figure{{
		what: "idle sandbox, anonymous memory after load", ours: fmt.Sprintf("%.1f MiB", mib),
		yardstick: "-", ratio: mib,
		must: bound{value: 12, text: "≤ 12 MiB"}, goal: bound{value: 8, text: "≤ 8 MiB"},
	}}, nil
}

// agentProcesses finds the agents by their executable: the one file that all
// sandboxes mount, whatever it is called inside.
func agentProcesses() (map[int]bool, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	pids := make(map[int]bool)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		target, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil {
			continue // gone, or a kernel thread
		}
		if strings.Contains(target, "sandgate-agent") || strings.HasPrefix(target, "/.sandgate/") {
			pids[pid] = syscall.Kill(pid, 0) == nil
		}
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
