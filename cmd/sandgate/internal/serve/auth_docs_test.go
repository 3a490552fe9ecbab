package serve

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/server/authn"
)

// The examples of docs/operations.md are configurations and a command that work.
func TestIdentityExamplesOfTheGuideWork(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "\n## Who may call\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```(sh|yaml)\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 4 {
		t.Fatalf("%d examples, want 4", len(blocks))
	}
	for _, b := range blocks {
		kind, text := b[1], b[2]
		if kind == "sh" {
			args := strings.Fields(strings.ReplaceAll(text, "\\\n", " "))
			cmd := NewTokenCommand()
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs(args[2:]) // without "sandgate token"
			if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), "sgt_") {
				t.Errorf("%v: %v", args, err)
			}
			continue
		}
		c := configOf(t, text+"\nkubernetes: {kubeconfig: "+kubeconfig(t, "https://127.0.0.1:1")+"}")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(nil) // The issuers are not asked for keys.
		if a, err := c.authenticator(ctx, authn.Certificates{}, slog.New(slog.DiscardHandler)); err != nil || a == nil {
			t.Errorf("%v: %s", err, text)
		}
	}
}
