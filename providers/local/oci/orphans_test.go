//go:build linux

package oci

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestOrphansAreReaped: a child without a waiter is reaped, and one whose
// waiter comes a moment later is not.
func TestOrphansAreReaped(t *testing.T) {
	if err := AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	none := func() map[Process]bool { return nil }
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "sleep 0.05 >/dev/null & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	zombie := func(pid int) bool {
		stat, err := readStat(pid)
		return err == nil && stat.state == 'Z'
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	until("the orphan does not end", func() bool { return zombie(orphan) })
	seen := reapSeen(nil, none)
	if !zombie(orphan) {
		t.Error("it was reaped when it was seen for the first time")
	}
	own := exec.CommandContext(t.Context(), "true")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	until("the child does not end", func() bool { return zombie(own.Process.Pid) })
	reapSeen(seen, none)
	if zombie(orphan) {
		t.Error("the orphan was not reaped")
	}
	if err := own.Wait(); err != nil {
		t.Errorf("the child that is waited for: %v", err)
	}
}
