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
		path, h, err := acquireAgent(config, l, c.gvisor)
		if err != nil {
			t.Fatal(err)
		}
		defer closeHeld(t, h)
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
		path, h, err := acquireAgent(Config{Agent: func(string) ([]byte, error) { return []byte(content), nil }}, l, false)
		if err != nil {
			t.Fatal(err)
		}
		return &Provider{layout: l, agent: path, held: h, log: slog.New(slog.DiscardHandler)}
	}
	unused, used, served, current := place("unused"), place("used"), place("served"), place("current")
	b := bundle(l.Sandbox("sg-a"))
	if err := os.MkdirAll(string(b), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.config(), []byte(`{"source": "`+used.agent+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	closeHeld(t, unused.held)
	closeHeld(t, used.held)
	current.collect(t.Context(), l.agents(), current.agentInUse)
	for p, want := range map[*Provider]bool{unused: false, used: true, served: true, current: true} {
		if got := exists(p.agent); got != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(filepath.Dir(p.agent)), got, want)
		}
	}
	closeHeld(t, served.held)
	closeHeld(t, current.held)
}

func closeHeld(t *testing.T, h held) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}
