package e2e

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/daemon"
)

// sandgate top in a terminal shows sandboxes, their commands, what these write a second and
// the pools; it follows what happens and the terminal's size, and Ctrl-C ends it.
func TestTop(t *testing.T) {
	need(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("templates: [{name: default}, {name: pooled, pool: 1}]\n")
	s, err := serve(dir, "--config", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		write("templates: [{name: default}]\n")
		eventually(t, time.Minute, "an empty pool", func() bool {
			left, err := os.ReadDir(filepath.Join(dir, "state", "local", "pool"))
			return err == nil && len(left) == 0
		})
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	s.must(t, "create", "busy")
	s.must(t, "exec", "--detach", "busy", "-c", "while :; do head -c 100000 /dev/zero; sleep 0.1; done")

	cmd := s.command(context.WithoutCancel(t.Context()), "top", "--commands", "--interval", "500ms")
	master := startInTerminal(t, cmd, 24, 150)
	defer master.Close()
	screen, done := new(daemon.Log), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(screen, master)
	}()
	// The last view is what comes after the last time that the cursor went home.
	view := func() string {
		text := screen.String()
		views := strings.Split(text, "\x1b[H")
		if len(views) < 3 {
			return ""
		}
		return views[len(views)-2]
	}
	shows := func(texts ...string) {
		t.Helper()
		eventually(t, time.Minute, strings.Join(texts, ", "), func() bool {
			for _, text := range texts {
				if !strings.Contains(view(), text) {
					return false
				}
			}
			return true
		})
	}
	shows("1 sandboxes (active=1)   1 commands", "pool pooled: 1 of 1 available, 0 claimed", "KiB/s", "busy", "head -c 100000")
	s.must(t, "create", "another", "--template", "pooled")
	shows("2 sandboxes (active=2)", "another", "pool pooled: 1 of 1 available, 1 claimed")
	resize(t, master, 5, 40)
	shows("more lines")
	for line := range strings.Lines(strings.TrimSuffix(view(), "\x1b[J")) {
		if text := strings.TrimRight(strings.ReplaceAll(line, "\x1b[K", ""), "\r\n"); len([]rune(text)) > 40 {
			t.Errorf("a line of %d columns: %q", len([]rune(text)), text)
		}
	}
	if _, err := master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
	<-done
	if text := screen.String(); !strings.Contains(text[strings.LastIndex(text, "\x1b[H"):], "\x1b[?25h") {
		t.Error("the cursor stays hidden")
	}
}
