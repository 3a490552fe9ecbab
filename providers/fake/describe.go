package fake

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandgate/sandgate/providers"
)

// Describe reports that nothing is enforced.
func (p *Provider) Describe(ctx context.Context) (providers.Description, error) {
	if err := p.begin(ctx, "describe", ""); err != nil {
		return providers.Description{}, err
	}
	d := providers.Description{
		Name: "fake", Runtime: "none",
		DefaultResources: providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024, DiskBytes: 4 << 30},
	}
	for _, name := range []string{"memory", "cpu", "processes", "disk", "network", "unprivileged", "seccomp", "kill_tree", "write_prefixes"} {
		d.Enforcement = append(d.Enforcement, providers.Enforcement{Name: name, Detail: "a fake isolates nothing"})
	}
	return d, nil
}

func noOptions(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var options map[string]json.RawMessage
	if err := json.Unmarshal(raw, &options); err != nil || len(options) > 0 {
		return fmt.Errorf("options of the fake provider: it takes none: %w", providers.ErrInvalid)
	}
	return nil
}
