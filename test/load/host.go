//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/test/daemon"
	"github.com/sandgate/sandgate/test/footprint"
)

// serverConfig has sandboxes of which a small machine holds hundreds.
const serverConfig = `
templates:
  - name: default
    resources: {memory_bytes: 134217728, max_processes: 64, disk_bytes: 67108864}
`

// reconnectTime is how long after a restart a client may still find the server away: it
// dials again after a pause.
const reconnectTime = 5 * time.Second

// host is a server with its sandboxes, in a directory of its own.
type host struct {
	provider string
	dir      string
	tokens   []string // by tenant
	options  daemon.Options
	uses     *footprint.Server
	metrics  http.Client

	mu     sync.Mutex
	server *daemon.Daemon
	kills  int
	down   bool
	up     time.Time // of the last restart
}

// tenantName has the same length for all tenants, so that none begins another.
func tenantName(i int) string { return fmt.Sprintf("t%05d", i) }

// newHost starts a server with a token for each tenant.
func newHost(ctx context.Context, provider string, tenants int) (_ *host, err error) {
	h := &host{provider: provider}
	if h.dir, err = os.MkdirTemp("", "sandgate-load-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(h.dir)
		}
	}()
	file := "tokens:\n"
	for i := range tenants {
		token, entry, err := authn.NewToken(authn.Entry{Name: tenantName(i), Tenant: tenantName(i)})
		if err != nil {
			return nil, err
		}
		h.tokens = append(h.tokens, token)
		file += fmt.Sprintf("- {name: %s, tenant: %s, sha256: %s}\n", entry.Name, entry.Tenant, entry.SHA256)
	}
	for name, text := range map[string]string{"tokens.yaml": file, "config.yaml": serverConfig} {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cgroup := fmt.Sprintf("/sandgate-load-%d", os.Getpid())
	h.uses = footprint.New(h.dir, cgroup)
	admin := filepath.Join(h.dir, "admin.sock")
	h.metrics.Transport = &http.Transport{
		DisableKeepAlives: true, // so that the server has no descriptor of it between two samples
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", admin)
		},
	}
	h.options = daemon.Options{
		Args: []string{
			"--state-dir", filepath.Join(h.dir, "state"), "--tokens-file", filepath.Join(h.dir, "tokens.yaml"),
			"--admin-listen", "unix://" + admin,
		},
		Log: new(daemon.Log),
		// An interrupt is for this process, which still needs the server then.
		Attr: &syscall.SysProcAttr{Setpgid: true},
	}
	if provider == "fake" {
		h.options.Program, err = os.Executable()
	} else {
		h.options.Args = append(h.options.Args, "--config", filepath.Join(h.dir, "config.yaml"), "--local-cgroup", cgroup)
	}
	if err != nil {
		return nil, err
	}
	if h.options.Listen, err = daemon.FreeAddress(); err != nil {
		return nil, err
	}
	h.server, err = daemon.Start(ctx, h.options)
	return h, err
}

// files returns the directory for files in a sandbox. Those of the fake provider share
// the machine's file system.
func (h *host) files(id string) string {
	if h.provider == "fake" {
		return filepath.Join(h.dir, "files", id)
	}
	return "/workspace/files"
}

// deleted removes what a fake sandbox cannot.
func (h *host) deleted(id string) error {
	if h.provider == "fake" {
		return os.RemoveAll(h.files(id))
	}
	return nil
}

// restart kills the server and starts it again at the same address.
func (h *host) restart(ctx context.Context) error {
	h.mu.Lock()
	h.down = true
	h.kills++
	h.mu.Unlock()
	h.server.Kill()
	server, err := daemon.Start(ctx, h.options)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.server, h.down, h.up = server, false, time.Now()
	return nil
}

// killed returns how often the server was killed.
func (h *host) killed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kills
}

// disturbed reports whether the server was away at some time since begin.
func (h *host) disturbed(begin time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.down || h.kills > 0 && begin.Before(h.up.Add(reconnectTime))
}

// resident returns the server's resident memory, with the fake provider including its
// agents'.
func (h *host) resident() (int64, error) { return h.server.Memory("VmRSS") }

// scrape reads the named metrics, which have no labels.
func (h *host) scrape(ctx context.Context, names ...string) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := h.metrics.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	found := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		for _, name := range names {
			var value float64
			if _, err := fmt.Sscanf(lines.Text(), name+" %g", &value); err == nil {
				found[name] = value
			}
		}
	}
	if len(found) < len(names) {
		return nil, fmt.Errorf("metrics: found %v, want %s: %w", found, strings.Join(names, ", "), lines.Err())
	}
	return found, nil
}

// stop ends the server, whose sandboxes are deleted, and removes its files. It returns
// everything that is left behind.
func (h *host) stop() error {
	var errs []error
	if h.provider != "fake" { // serveFake looks itself
		errs = h.uses.Left()
	}
	if err := h.server.Stop(); err != nil {
		errs = append(errs, h.server.Explain(fmt.Errorf("the server's end after SIGTERM: %w", err)))
	}
	if len(errs) == 0 {
		errs = append(errs, h.uses.RemoveCgroup())
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}
