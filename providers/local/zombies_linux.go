package local

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// zombieInterval is how often ended children are looked for. A child that was
// seen twice is waited for by nobody.
const zombieInterval = 10 * time.Second

// reapOrphans reaps what a killed runtime left to this process. Children that
// somebody waits for are gone long before they are seen twice, and the first
// processes of sandboxes are left: how they ended says why a sandbox failed.
func (p *Provider) reapOrphans(ctx context.Context) {
	seen := map[process]bool{}
	tick := time.NewTicker(zombieInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			seen = p.reapSeen(seen)
		case <-ctx.Done():
			return
		}
	}
}

// reapSeen reaps the orphans among the children that had ended the last time
// already, and returns the others that have ended.
func (p *Provider) reapSeen(before map[process]bool) map[process]bool {
	now := map[process]bool{}
	var known map[process]bool
	for _, pid := range children() {
		start, state, err := readStat(pid)
		if err != nil || state != 'Z' {
			continue
		}
		child := process{PID: pid, Start: start}
		if !before[child] {
			now[child] = true
			continue
		}
		if known == nil {
			known = p.firstProcesses()
		}
		if known[child] {
			now[child] = true
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
	return now
}

// firstProcesses are those of all sandboxes, without the boot.
func (p *Provider) firstProcesses() map[process]bool {
	known := map[process]bool{}
	for _, dir := range []string{p.layout.sandboxes(), p.layout.pool()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			rec, err := readRecord(bundle(filepath.Join(dir, e.Name())))
			if err != nil {
				continue
			}
			for _, of := range []process{rec.Init, rec.Helper} {
				known[process{PID: of.PID, Start: of.Start}] = true
			}
		}
	}
	return known
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
