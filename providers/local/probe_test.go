//go:build linux

package local_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestServerDoesNotStartWithABrokenRuntime: a server does not start with a runtime that starts none.
func TestServerDoesNotStartWithABrokenRuntime(t *testing.T) {
	config := testConfig(t)
	broken := config
	for _, command := range []string{"true", "false"} {
		path, err := exec.LookPath(command)
		if err != nil {
			t.Fatal(err)
		}
		broken.Runtime = path
		p := open(t, broken)
		if d, err := p.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), "no sandbox can be started on this machine") {
			t.Errorf("%s: %+v, %v", command, d, err)
		}
		closeProvider(t, p)
	}

	// Sandboxes that run are served all the same.
	p := open(t, config)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	if _, err := providertest.Create(t.Context(), p, "runs", spec); err != nil {
		t.Fatal(err)
	}
	closeProvider(t, p)
	p = open(t, broken)
	defer closeProvider(t, p)
	if _, err := p.Describe(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Delete(t.Context(), "runs", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// TestUnappliedProtectionsAreNotReported: protections that a runtime does not apply are not
// reported as enforced.
func TestUnappliedProtectionsAreNotReported(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc")
	}
	for protection, field := range map[string]string{"memory": "memory", "cpu": "cpu", "processes": "pids", "seccomp": "seccomp", "unprivileged": "noNewPrivileges"} {
		t.Run(protection, func(t *testing.T) {
			config := testConfig(t)
			config.Runtime = filepath.Join(t.TempDir(), "runc")
			script := fmt.Sprintf(`#!/bin/sh
last=
for arg; do [ "$last" = --bundle ] && sed -i 's/"%s":/"left-out":/' "$arg/config.json"; last=$arg; done
exec %s "$@"
`, field, runc)
			if err := os.WriteFile(config.Runtime, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			p := open(t, config)
			defer closeProvider(t, p)
			d, err := p.Describe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range d.Enforcement {
				if e.Enforced == (e.Name == protection) {
					t.Errorf("%s: enforced %v: %s", e.Name, e.Enforced, e.Detail)
				}
			}
		})
	}
}
