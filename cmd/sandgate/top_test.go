package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestTopOnce(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	must(t, server, "create", "busy")
	must(t, server, "create", "quiet")
	must(t, server, "exec", "--detach", "busy", "--", "wait", "\x1b[31m")
	text := must(t, server, "top", "--once", "--commands", "--interval", "100ms")
	if !strings.Contains(text, "2 sandboxes (active=2)   1 commands") || strings.Contains(text, "\x1b") {
		t.Errorf("%s", text)
	}
	if busy, quiet := strings.Index(text, "\nbusy "), strings.Index(text, "\nquiet "); busy < 0 || quiet < busy {
		t.Errorf("the busy sandbox is not the first: %s", text)
	}
	var rows []topRow
	if err := json.Unmarshal([]byte(must(t, server, "top", "--once", "--output", "json", "--interval", "100ms")), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || rows[0].Commands != -1 || rows[0].State != "active" {
		t.Errorf("%+v", rows)
	}
	if r := run(t.Context(), server, "", "top"); r.code != 125 || !strings.Contains(r.stderr, "use --once") {
		t.Errorf("without a terminal: %+v", r)
	}
	if r := run(t.Context(), server, "", "top", "--interval", "1ms"); r.code != 125 {
		t.Errorf("a short interval: %+v", r)
	}
}

// A rate is what commands of the same incarnation have written between two views.
func TestTopRates(t *testing.T) {
	begun := time.Now()
	view := func(at time.Duration, incarnation string, output map[string]int64) *topView {
		return &topView{at: begun.Add(at), server: &sandgate.ServerInfo{}, sandboxes: []topSandbox{{
			info:  &sandgate.Info{SandboxId: "a", Incarnation: incarnation, LastActivityTime: timestamppb.New(begun)},
			known: true, output: output, running: []*sandboxv1.Process{{Command: "yes"}},
		}}}
	}
	first := view(0, "i", map[string]int64{"x": 100})
	for name, c := range map[string]struct {
		now  *topView
		want float64
	}{
		"more and new":        {view(2*time.Second, "i", map[string]int64{"x": 300, "y": 100}), 150},
		"nothing":             {view(2*time.Second, "i", map[string]int64{"x": 100}), 0},
		"forgotten":           {view(2*time.Second, "i", nil), 0},
		"another incarnation": {view(2*time.Second, "j", map[string]int64{"x": 300}), 0},
		"the same moment":     {view(0, "i", map[string]int64{"x": 300}), 0},
	} {
		if got := c.now.rows(first)[0].Output; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestFit(t *testing.T) {
	const end = "\x1b[K"
	for _, c := range []struct {
		text          string
		rows, columns int
		want          string
	}{
		{"a\nb\n", 5, 10, "a" + end + "\r\nb" + end},
		{"äöü\n", 5, 2, "äö" + end},
		{"a\nb\nc\nd", 2, 80, "a" + end + "\r\n… 3 more lines" + end},
	} {
		if got := fit(c.text, c.rows, c.columns); got != c.want {
			t.Errorf("%q: %q", c.text, got)
		}
	}
}
