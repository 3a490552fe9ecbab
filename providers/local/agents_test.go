//go:build linux

package local

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers/internal/directory"
)

// TestDamagedAgentIsReplaced: an executable of the right size and other content is
// replaced, and without gVisor only root can read it.
func TestDamagedAgentIsReplaced(t *testing.T) {
	l := layout{directory.Layout(t.TempDir())}
	want := strings.Repeat("agent", 1000)
	config := Config{Agent: func(string) ([]byte, error) { return []byte(want), nil }}
	for _, c := range []struct {
		gvisor bool
		mode   os.FileMode
	}{{false, 0o711}, {true, 0o755}, {false, 0o711}, {true, 0o755}} {
		path, err := installAgent(config, l, c.gvisor)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("it has other content: %v", err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if err := os.WriteFile(path, make([]byte, len(want)), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnusedAgentsAreCollected: agents of other versions are removed once
// neither a sandbox nor a server uses them.
func TestUnusedAgentsAreCollected(t *testing.T) {
	l := layout{directory.Layout(t.TempDir())}
	if err := l.make(); err != nil {
		t.Fatal(err)
	}
	place := func(content string) *Provider {
		t.Helper()
		path, hold, err := acquireAgent(Config{Agent: func(string) ([]byte, error) { return []byte(content), nil }}, l, false)
		if err != nil {
			t.Fatal(err)
		}
		return &Provider{layout: l, agent: path, agentLock: hold, log: slog.New(slog.DiscardHandler)}
	}
	unused, used, served, current := place("unused"), place("used"), place("served"), place("current")
	b := bundle(l.Sandbox("sg-a"))
	if err := os.MkdirAll(string(b), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.config(), []byte(`{"source": "`+used.agent+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, closed := range []*Provider{unused, used} {
		if err := closed.agentLock.Close(); err != nil {
			t.Fatal(err)
		}
	}
	current.collectAgents(t.Context())
	for p, want := range map[*Provider]bool{unused: false, used: true, served: true, current: true} {
		if got := exists(p.agent); got != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(filepath.Dir(p.agent)), got, want)
		}
	}
	if err := served.agentLock.Close(); err != nil {
		t.Error(err)
	}
	if err := current.agentLock.Close(); err != nil {
		t.Error(err)
	}
}
