//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// How much more than when they were warm the server and an agent may hold at the
// end. An agent keeps the end of every command, so that it may hold some more for
// each. Descriptors are compared with those before the load.
const (
	serverGrowth     = 10 << 20
	agentGrowth      = 8 << 20
	keptEnd          = 6 << 10
	descriptorGrowth = 8
)

// figures are what is held at one moment.
type figures struct {
	server, agent int64 // anonymous memory in bytes; the agent's is the largest
	descriptors   int   // of the server
	commands      int64 // so far, in all sandboxes
}

// least keeps the smaller of each, where both were measured: memory that the
// garbage collector is about to take is no leak.
func (f figures) least(g figures) figures {
	if f == (figures{}) {
		return g
	}
	return figures{min(f.server, g.server), min(f.agent, g.agent), min(f.descriptors, g.descriptors), min(f.commands, g.commands)}
}

func (f figures) String() string {
	return fmt.Sprintf("server %.1f MiB anonymous and %d descriptors, largest agent %.1f MiB",
		float64(f.server)/(1<<20), f.descriptors, float64(f.agent)/(1<<20))
}

func (h *house) measure() (f figures) {
	pid := h.pid()
	f.commands = h.tally.commands.Load()
	f.server = anonymous(pid)
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	f.descriptors = len(entries)
	for _, p := range h.inside() {
		if p.agent {
			f.agent = max(f.agent, anonymous(p.pid))
		}
	}
	return f
}

// anonymous is a process' anonymous memory in bytes, 0 when it is gone.
func anonymous(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Anonymous:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// settled measures for a while after the load and returns the least: memory and
// connections are given back with a delay, and an idle Go program collects its
// garbage every two minutes only. It ends early when nothing exceeds what is
// allowed.
func (h *house) settled(ctx context.Context, idle, warm figures) (last figures, errs []error) {
	each := (h.tally.commands.Load() - warm.commands) / int64(len(h.sandboxes))
	most := figures{
		server: warm.server + serverGrowth, agent: warm.agent + agentGrowth + each*keptEnd,
		descriptors: idle.descriptors + descriptorGrowth,
	}
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline) && ctx.Err() == nil; {
		last = last.least(h.measure())
		if errs = last.exceeds(most); len(errs) == 0 {
			return last, nil
		}
		time.Sleep(500 * time.Millisecond)
	}
	return last, errs
}

func (f figures) exceeds(most figures) (errs []error) {
	if f.server > most.server {
		errs = append(errs, fmt.Errorf("the server holds too much: %v; allowed: %v", f, most))
	}
	if f.agent > most.agent {
		errs = append(errs, fmt.Errorf("an agent holds too much: %v; allowed: %v", f, most))
	}
	if f.descriptors > most.descriptors {
		errs = append(errs, fmt.Errorf("the server holds too many descriptors: %v; allowed: %v", f, most))
	}
	return errs
}

// strangers are the processes in the sandboxes that should have ended. They are
// given a minute.
func (h *house) strangers() (errs []error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		errs = nil
		agents, connects := 0, 0
		for _, p := range h.inside() {
			switch {
			case p.agent:
				agents++
			case p.connect:
				connects++
			default:
				errs = append(errs, fmt.Errorf("process %d is left in a sandbox: %s", p.pid, p.args))
			}
		}
		if agents != len(h.sandboxes) || connects > len(h.sandboxes) {
			errs = append(errs, fmt.Errorf("%d agents and %d connects in %d sandboxes", agents, connects, len(h.sandboxes)))
		}
		if len(errs) == 0 || time.Now().After(deadline) {
			return errs
		}
	}
}

// leftovers is what the deleted sandboxes should not have left: processes,
// cgroups, mounts. They are given a moment.
func (h *house) leftovers() (errs []error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		errs = nil
		for _, p := range h.inside() {
			errs = append(errs, fmt.Errorf("process %d is left after delete: %s", p.pid, p.args))
		}
		for _, pattern := range []string{"/sys/fs/cgroup%s/*/cgroup.procs", "/sys/fs/cgroup/*%s/*/cgroup.procs"} {
			groups, _ := filepath.Glob(fmt.Sprintf(pattern, h.cgroup))
			for _, g := range groups {
				errs = append(errs, fmt.Errorf("cgroup %s is left after delete", filepath.Dir(g)))
			}
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			errs = append(errs, err)
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, h.dir+"/") && strings.Contains(line, "/sandboxes/") {
				errs = append(errs, fmt.Errorf("mount is left after delete: %s", strings.TrimSpace(line)))
			}
		}
		if len(errs) == 0 || time.Now().After(deadline) {
			return errs
		}
	}
}
