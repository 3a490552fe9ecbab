package kubernetes

import (
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/escape"
)

// TestEscape tries to break out of a pod from inside of it.
func TestEscape(t *testing.T) {
	client := serve(t, server.Config{Provider: newRawRig(t).Provider})
	box, _, err := client.Create(limit(t), sandgate.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = box.Delete(limit(t)) })
	escape.Run(t, box, escape.Build(t), map[string]string{})
}
