//go:build linux

package local

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/disk"
)

func TestOptions(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, c := range []struct {
		name string
		spec providers.Spec
		want error
	}{
		{"none", providers.Spec{Network: providers.NetworkNone}, nil},
		{"unknown template option", providers.Spec{Network: providers.NetworkNone, TemplateOptions: raw(`{"x": 1}`)}, providers.ErrInvalid},
		{"two values", providers.Spec{Network: providers.NetworkNone, TemplateOptions: raw(`{} {}`)}, providers.ErrInvalid},
		{"request option", providers.Spec{Network: providers.NetworkNone, Options: raw(`{"host_network": true}`)}, providers.ErrInvalid},
		{"full network", providers.Spec{Network: providers.NetworkFull}, providers.ErrForbidden},
		{"full network allowed", providers.Spec{Network: providers.NetworkFull, TemplateOptions: raw(`{"host_network": true}`)}, nil},
		{"proxy", providers.Spec{Network: providers.NetworkProxy}, nil},
		{"image, which the server has allowed", providers.Spec{Network: providers.NetworkNone, Image: "oci:/i/a"}, nil},
	} {
		if _, err := decodeOptions(c.spec); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestCheckResources(t *testing.T) {
	for _, c := range []struct {
		name string
		r    providers.Resources
		want error
	}{
		{"none", providers.Resources{}, nil},
		{"least", providers.Resources{MemoryBytes: minMemory, CPUMillis: minCPUMillis, MaxProcesses: minProcesses, DiskBytes: disk.MinSize}, nil},
		{"memory", providers.Resources{MemoryBytes: 4096}, providers.ErrInvalid},
		{"CPU", providers.Resources{CPUMillis: 1}, providers.ErrInvalid},
		{"processes", providers.Resources{MaxProcesses: 1}, providers.ErrInvalid},
		{"small disk", providers.Resources{DiskBytes: 1}, providers.ErrInvalid},
		{"large disk", providers.Resources{DiskBytes: 1 << 60}, providers.ErrInvalid},
	} {
		if err := checkResources(c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
