//go:build linux

package local_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestEnvironmentValuesArePrivateToRoot: values of the environment reach commands, and only
// root can read them on the host.
func TestEnvironmentValuesArePrivateToRoot(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	const secret = "c0rrect-h0rse"
	spec := providers.Spec{
		Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources(), Env: map[string]string{"SECRET": secret},
	}
	if _, err := providertest.Create(t.Context(), p, "secrets", spec); err != nil {
		t.Fatal(err)
	}
	if got := providertest.Shell(t, p, "secrets", "echo $SECRET"); got != secret+"\n" {
		t.Errorf("commands see %q", got)
	}
	info, err := os.Stat(config.StateDir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v", info.Mode(), err)
	}
	err = filepath.WalkDir(config.StateDir, func(path string, d fs.DirEntry, err error) error {
		// Not what is in disks, nor their template of 4 GiB: the race detector would take
		// five times that of the machine's memory.
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "/rootfs/") || strings.Contains(path, "/disks/") || strings.HasSuffix(path, ".ext4") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if bytes.Contains(data, []byte(secret)) && info.Mode().Perm() != 0o600 {
			t.Errorf("%s holds the secret and has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	state, err := exec.CommandContext(t.Context(), "runc", "--root", filepath.Join(config.StateDir, "runtime/runc"), "state", "secrets").Output()
	if err != nil || bytes.Contains(state, []byte(secret)) {
		t.Errorf("runc state: %v, %s", err, state)
	}
	if err := p.Delete(t.Context(), "secrets", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// TestFullNetworkIsTheHosts: where the template allows it, a sandbox has the host's
// network, and is reached in both ways all the same.
func TestFullNetworkIsTheHosts(t *testing.T) {
	for _, transport := range []local.Transport{local.TransportSocket, local.TransportExec} {
		config := testConfig(t)
		config.Transport = transport
		p := open(t, config)
		spec := providers.Spec{
			Hash: "h", Network: providers.NetworkFull, Resources: local.DefaultResources(),
			TemplateOptions: json.RawMessage(`{"host_network": true}`),
		}
		for _, name := range []string{"one", "two"} {
			if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
				t.Fatalf("%s: %v", transport, err)
			}
		}
		want, err := os.ReadFile("/proc/net/dev")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"one", "two"} {
			got := providertest.Shell(t, p, name, "cat /proc/net/dev")
			if strings.Count(got, ":") != bytes.Count(want, []byte(":")) {
				t.Errorf("%s: %s sees %s", transport, name, got)
			}
			if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
