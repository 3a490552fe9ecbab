//go:build linux

package local

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestOrphansAreReaped: a child that nobody waits for is reaped, and one that
// somebody will wait for in a moment is not.
func TestOrphansAreReaped(t *testing.T) {
	if err := adoptOrphans(); err != nil {
		t.Fatal(err)
	}
	p := &Provider{layout: layout(t.TempDir())}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "sleep 0.05 >/dev/null & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	zombie := func(pid int) bool {
		_, state, err := readStat(pid)
		return err == nil && state == 'Z'
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
	seen := p.reapSeen(nil)
	if !zombie(orphan) {
		t.Error("it was reaped when it was seen for the first time")
	}
	own := exec.CommandContext(t.Context(), "true")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	until("the child does not end", func() bool { return zombie(own.Process.Pid) })
	p.reapSeen(seen)
	if zombie(orphan) {
		t.Error("nobody has reaped the orphan")
	}
	if err := own.Wait(); err != nil {
		t.Errorf("the child that is waited for: %v", err)
	}
}

// TestUnusedAgentsAreCollected: agents of other versions go once neither a
// sandbox nor a server uses them.
func TestUnusedAgentsAreCollected(t *testing.T) {
	l := layout(t.TempDir())
	if err := l.make(); err != nil {
		t.Fatal(err)
	}
	place := func(content string) *Provider {
		t.Helper()
		path, hold, err := claimAgent(Config{Agent: func(string) ([]byte, error) { return []byte(content), nil }}, l, false)
		if err != nil {
			t.Fatal(err)
		}
		return &Provider{layout: l, agent: path, hold: hold, log: slog.New(slog.DiscardHandler)}
	}
	unused, used, served, current := place("unused"), place("used"), place("served"), place("current")
	b := l.sandbox("sg-a")
	if err := os.MkdirAll(string(b), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.config(), []byte(`{"source": "`+used.agent+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, closed := range []*Provider{unused, used} {
		if err := closed.hold.Close(); err != nil {
			t.Fatal(err)
		}
	}
	current.collectAgents(t.Context())
	for p, want := range map[*Provider]bool{unused: false, used: true, served: true, current: true} {
		if got := exists(p.agent); got != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(filepath.Dir(p.agent)), got, want)
		}
	}
	if err := served.hold.Close(); err != nil {
		t.Error(err)
	}
	if err := current.hold.Close(); err != nil {
		t.Error(err)
	}
}
