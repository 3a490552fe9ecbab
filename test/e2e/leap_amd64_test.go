package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// agentOf returns the process of the agent in whose sandbox a command with this argument
// runs.
func agentOf(t *testing.T, argument string) (pid int) {
	t.Helper()
	eventually(t, 20*time.Second, "the command "+argument, func() bool {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range lines {
			if line, _ := os.ReadFile(path); string(line) == "sleep\x00"+argument+"\x00" {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
			}
		}
		return pid > 0
	})
	for agent := 0; ; {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		name, rest, _ := strings.Cut(string(status), ") ")
		if strings.HasSuffix(name, "(agent") {
			agent = pid
		} else if agent > 0 {
			return agent // its parent is the runtime, or what the server started
		}
		pid, _ = strconv.Atoi(strings.Fields(rest)[1])
		if pid <= 1 {
			return agent
		}
	}
}

// The clock of the machine is set an hour ahead and then an hour behind, for the server
// and an agent. Commands go on, no sandbox expires, ended commands are kept, a reader
// that pauses is not dropped, a changed file of tokens counts within seconds, and so does
// the rate of creations. The metrics show the leaps.
func TestClockLeaps(t *testing.T) {
	need(t)
	t.Parallel()
	const more = time.Hour + time.Minute
	dir := t.TempDir()
	tokens, config := filepath.Join(dir, "tokens.yaml"), filepath.Join(dir, "config.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(name, tenant string) string {
		return fmt.Sprintf("- {name: %s, tenant: %s, sha256: %x}\n", name, tenant, sha256.Sum256([]byte("sgt_"+name)))
	}
	write(tokens, "tokens:\n"+entry("ann", "blue")+entry("gone", "blue"))
	write(config, "reaper: {interval: 500ms}\nquotas: {tenant: {creations_per_minute: 10}}\n")
	s, err := serve(dir, append(watched(dir), "--tokens-file", tokens, "--config", config)...)
	if err != nil {
		t.Fatal(err)
	}
	as := func(name string, args ...string) ran {
		return s.run("", append([]string{"--token", "sgt_" + name}, args...)...)
	}
	must := func(args ...string) string {
		t.Helper()
		r := as("ann", args...)
		if r.code != 0 {
			t.Fatalf("%v: %+v", args, r)
		}
		return strings.TrimSpace(r.stdout)
	}
	t.Cleanup(func() {
		if r := as("ann", "rm", "--all", "--yes"); r.code != 0 {
			t.Error(r)
		}
		s.Kill()
	})
	metrics := s.scraper()
	must("create", "kept", "--idle-ttl", "10m")
	must("create", "aged", "--ttl", "20m")
	ended := must("exec", "--detach", "kept", "-c", "echo ended")
	must("attach", "kept", ended)
	const argument = "4728"
	must("exec", "--detach", "kept", "--", "sleep", argument)
	server, agent := wallClockOf(t, s.Process.Pid), wallClockOf(t, agentOf(t, argument))
	counted := make(chan ran, 1)
	go func() { counted <- as("ann", "exec", "kept", "-c", counting) }()

	// A reader pauses, with the server in the middle of what it sends.
	flood := must("exec", "--detach", "kept", "-c", "yes | head -c 40000000")
	ctx, cancel := context.WithCancel(t.Context())
	reader := s.command(ctx, "--token", "sgt_ann", "attach", "kept", flood)
	output, err := reader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = reader.Wait()
	}()
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()

	leap := func(by time.Duration, direction string) {
		t.Helper()
		server.set(by)
		agent.set(by)
		metrics.await(t, `sandgate_clock_leaps_total{direction="`+direction+`"}`, 1)
		rounds := metrics.value(t, "sandgate_reap_round_duration_seconds_count")
		metrics.await(t, "sandgate_reap_round_duration_seconds_count", rounds+3)
		if got := must("exec", "kept", "--", "date", "+%s"); got == "" {
			t.Error("no command runs")
		}
		if got := must("attach", "kept", ended); got != "ended" {
			t.Errorf("the output of an ended command: %q", got)
		}
		if got := must("ls", "--quiet"); !strings.Contains(got, "kept") || !strings.Contains(got, "aged") {
			t.Errorf("the sandboxes: %q", got)
		}
		must("exec", "aged", "--", "true")
	}
	leap(more, "forward")
	beyond := ran{}
	for i := 0; beyond.code == 0; i++ {
		if beyond = as("ann", "create", fmt.Sprint("s", i)); i > 30 {
			t.Fatal("creations have no rate")
		}
	}
	if !strings.Contains(beyond.stderr, "QUOTA_EXCEEDED") {
		t.Fatal(beyond)
	}
	if r := as("gone", "ls"); r.code != 0 {
		t.Fatal(r)
	}

	// The server looks for readers that receive nothing every 15 s.
	eventually(t, 20*time.Second, "a look at the reader", func() bool { return time.Since(paused) > 16*time.Second })
	records, err := os.ReadFile(filepath.Join(dir, "state", "audit.log"))
	if err != nil || strings.Contains(string(records), "READER_TOO_SLOW") || !strings.Contains(string(records), flood) {
		t.Errorf("the reader was dropped: %v", err)
	}

	leap(-more, "back")
	write(tokens, "tokens:\n"+entry("ann", "blue")+entry("new", "blue"))
	eventually(t, 10*time.Second, "the changed tokens", func() bool {
		return as("new", "ls").code == 0 && strings.Contains(as("gone", "ls").stderr, "CREDENTIALS_INVALID")
	})
	eventually(t, 20*time.Second, "a creation within the rate", func() bool { return as("ann", "create", "after").code == 0 })
	must("exec", "kept", "--", "touch", "/workspace/end")
	if got := <-counted; got.code != 7 || got.stderr != "" {
		t.Errorf("the command that ran meanwhile: %d %s", got.code, got.stderr)
	} else {
		checkCounted(t, got.stdout)
	}

}
