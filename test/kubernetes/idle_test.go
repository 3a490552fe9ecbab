package kubernetes

import (
	"errors"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// A template's own command is a running command like any other: a sandbox that
// serves something is not idle. When it has ended, idleness begins.
func TestRawOwnCommandIsNoIdleness(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	template := policy.DefaultTemplate()
	template.Command = []string{"sleep", "1000"}
	client := serve(t, server.Config{
		Provider: r.Provider, Templates: []policy.Template{template}, Timing: server.Timing{ReapInterval: time.Second},
	})
	const idle = 3 * time.Second
	box, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "serving", IdleTTL: idle})
	if err != nil {
		t.Fatal(err)
	}
	// What must not happen has had its time.
	late := time.NewTimer(3 * idle)
	<-late.C
	if _, err := box.Info(limit(t)); err != nil {
		t.Fatalf("while its command runs: %v", err)
	}
	if found, err := box.Signal(limit(t), "main", "SIGKILL", sandgate.Tree); err != nil || !found {
		t.Fatalf("signal: %v, %v", found, err)
	}
	for ctx := limit(t); ; {
		_, err := box.Info(ctx)
		if errors.Is(err, sandgate.ErrSandboxNotFound) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatal("it is never idle")
		case <-time.After(200 * time.Millisecond):
		}
	}
}
