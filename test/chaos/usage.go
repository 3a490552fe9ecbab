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
)

// Growth that is allowed at the end, compared with the warm server and agents. An agent
// retains the exit status of every command, so each adds some. Descriptors are
// compared with those before the load.
const (
	serverGrowth     = 10 << 20
	agentGrowth      = 8 << 20
	endedCommand     = 6 << 10
	descriptorGrowth = 8
)

// usage is the memory and the descriptors in use at one moment.
type usage struct {
	server, agent int64 // anonymous memory in bytes; the agent's is the largest
	descriptors   int   // of the server
	commands      int64 // so far, in all sandboxes
}

// least returns the smaller value of each: memory that the garbage collector is about
// to free is no leak.
func (f usage) least(g usage) usage {
	if f == (usage{}) {
		return g
	}
	return usage{min(f.server, g.server), min(f.agent, g.agent), min(f.descriptors, g.descriptors), min(f.commands, g.commands)}
}

func (f usage) String() string {
	return fmt.Sprintf("server %.1f MiB anonymous and %d descriptors, largest agent %.1f MiB",
		float64(f.server)/(1<<20), f.descriptors, float64(f.agent)/(1<<20))
}

func (h *host) measure() (f usage) {
	pid := h.pid()
	f.commands = h.tally.commands.Load()
	f.server = anonymous(pid)
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	f.descriptors = len(entries)
	for _, p := range h.uses.Processes() {
		if p.Agent {
			f.agent = max(f.agent, anonymous(p.ID))
		}
	}
	return f
}

// anonymous returns the anonymous memory of a process in bytes, or 0 if it has ended.
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

// settled measures for a while after the load and returns the smallest values: memory
// and connections are released with a delay, and an idle Go program collects garbage
// only every two minutes. It returns early if nothing exceeds the limits.
func (h *host) settled(ctx context.Context, idle, warm usage) (last usage, errs []error) {
	each := (h.tally.commands.Load() - warm.commands) / int64(len(h.sandboxes))
	most := usage{
		server: warm.server + serverGrowth, agent: warm.agent + agentGrowth + each*endedCommand,
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

func (f usage) exceeds(most usage) (errs []error) {
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

// strayProcesses returns an error for each process in the sandboxes that has not ended
// within a minute.
func (h *host) strayProcesses() (errs []error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		errs = nil
		agents, connects := 0, 0
		for _, p := range h.uses.Processes() {
			switch {
			case p.Agent:
				agents++
			case p.Connect:
				connects++
			default:
				errs = append(errs, fmt.Errorf("process %d is left in a sandbox: %s", p.ID, p.Args))
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
