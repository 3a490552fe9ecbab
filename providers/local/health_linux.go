package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

var _ providers.Prober = (*Provider)(nil)

// Probe writes a byte into the state directory, looks for the runtime, and
// measures the free space.
func (p *Provider) Probe(context.Context) (providers.Probe, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(p.config.StateDir, &fs); err != nil {
		return providers.Probe{FreeBytes: -1}, fmt.Errorf("the state directory: %w", err)
	}
	result := providers.Probe{FreeBytes: int64(fs.Bavail) * fs.Bsize}
	if _, err := exec.LookPath(p.runtime.Path); err != nil {
		return result, fmt.Errorf("the OCI runtime: %w", err)
	}
	file, err := os.CreateTemp(p.config.StateDir, ".probe-")
	if err != nil {
		return result, fmt.Errorf("the state directory cannot be written: %w", err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.Write([]byte{'\n'})
	if err = errors.Join(err, file.Close()); err != nil {
		return result, fmt.Errorf("the state directory cannot be written: %w", err)
	}
	return result, nil
}
