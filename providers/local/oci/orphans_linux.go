package oci

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// zombieInterval is the time between two looks for zombies. A child that is a
// zombie at both has no waiter.
const zombieInterval = 10 * time.Second

// ReapOrphans reaps children that a killed runtime has left to this process,
// until the context ends. Children with a waiter are gone long before they are
// seen twice. The known ones, first processes of sandboxes, stay: their exit
// status explains why a sandbox failed.
func ReapOrphans(ctx context.Context, known func() map[Process]bool) {
	seen := map[Process]bool{}
	tick := time.NewTicker(zombieInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			seen = reapSeen(seen, known)
		case <-ctx.Done():
			return
		}
	}
}

// reapSeen reaps the orphans among the children that had ended the last time
// already, and returns the others that have ended.
func reapSeen(before map[Process]bool, known func() map[Process]bool) map[Process]bool {
	now := map[Process]bool{}
	var keep map[Process]bool
	for _, pid := range children() {
		stat, err := readStat(pid)
		if err != nil || stat.state != 'Z' {
			continue
		}
		child := Process{PID: pid, Start: stat.start}
		if !before[child] {
			now[child] = true
			continue
		}
		if keep == nil {
			keep = known()
		}
		if keep[child] {
			now[child] = true
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
	return now
}

// children lists this process's children.
func children() []int {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var out []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}
