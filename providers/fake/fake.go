// Package fake is a provider for tests: its sandboxes are real agents in this
// very process, each with a temporary directory to work in. They isolate
// nothing, start in a millisecond and need neither root nor a container
// runtime.
package fake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sandgate/sandgate/agent"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

// Config configures a Machine. The zero value is usable.
type Config struct {
	// Hook, if set, is called at the start of every method with the method's name
	// in lower case, such as "create". It may wait, and its error becomes the
	// method's.
	Hook func(ctx context.Context, method, name string) error
	// Agent changes the configuration of an agent before it starts.
	Agent func(*agent.Config)
}

// Machine is the substrate: it outlives the providers that are opened on it.
type Machine struct {
	config Config
	dir    string

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	unclaimed []*sandbox     // of all pools
	starting  map[string]int // for pools, by template
	sockets   int

	ledgerMu sync.Mutex
	ledgers  map[string][]byte
}

// sandbox holds one name, or is a member of a pool. Its creation closes ready when
// it has ended, its deletion gone.
type sandbox struct {
	info   providers.Info
	agent  *agent.Agent
	conns  *tracker
	served sync.WaitGroup
	socket string
	dir    string
	ready  chan struct{}
	gone   chan struct{}
}

// NewMachine makes a machine with its files below dir, which must be short
// enough for the name of a unix socket, such as os.MkdirTemp("", "sg").
func NewMachine(dir string, config Config) *Machine {
	return &Machine{config: config, dir: dir, sandboxes: make(map[string]*sandbox), starting: make(map[string]int), ledgers: make(map[string][]byte)}
}

// Close ends all sandboxes.
func (m *Machine) Close() error {
	p := m.Open()
	m.mu.Lock()
	var names []string
	for name := range m.sandboxes {
		names = append(names, name)
	}
	m.mu.Unlock()
	errs := []error{m.end(func(*sandbox) bool { return true })}
	for _, name := range names {
		if err := p.end(name, providers.Condition{}); !errors.Is(err, providers.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Provider is one provider on a Machine.
type Provider struct {
	m     *Machine
	pools *pool.Controller[*sandbox, *claim]
}

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Ledger   = (*Provider)(nil)
)

// Open returns a provider. Several may be open at once.
func (m *Machine) Open() *Provider {
	p := &Provider{m: m}
	p.pools = pool.New(driver{p}, pool.Config{
		Log: slog.New(slog.DiscardHandler), Check: check, Parallel: 1, Interval: lookInterval, FirstRetry: lookInterval, LastRetry: lookInterval,
	})
	return p
}

// Close leaves the sandboxes running.
func (p *Provider) Close() error {
	p.pools.Close()
	return nil
}

func (p *Provider) begin(ctx context.Context, method, name string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", method, name, context.Cause(ctx))
	}
	if p.m.config.Hook != nil {
		return p.m.config.Hook(ctx, method, name)
	}
	return nil
}

// Create starts an agent.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if err := p.begin(ctx, "create", name); err != nil {
		return providers.Info{}, nil, err
	}
	if spec.Network == providers.NetworkProxy {
		// Its agents would all listen on the machine's own ports.
		return providers.Info{}, nil, fmt.Errorf("network %v: %w by the fake provider", spec.Network, providers.ErrUnsupported)
	}
	for _, raw := range []json.RawMessage{spec.TemplateOptions, spec.Options} {
		if err := noOptions(raw); err != nil {
			return providers.Info{}, nil, err
		}
	}
	for {
		p.m.mu.Lock()
		s := p.m.sandboxes[name]
		if s == nil {
			s = &sandbox{ready: make(chan struct{}), gone: make(chan struct{})}
			s.info = providers.Info{Name: name, State: providers.StateCreating, Spec: spec}
			p.m.sandboxes[name] = s
			p.m.mu.Unlock()
			return p.make(ctx, name, s, spec)
		}
		info := copyInfo(s.info)
		p.m.mu.Unlock()
		wait := s.ready
		switch {
		case info.State == providers.StateDeleting:
			wait = s.gone
		case info.State == providers.StateCreating:
		case info.Spec.Hash != spec.Hash:
			return providers.Info{}, nil, fmt.Errorf("create %s: %w", name, providers.ErrExists)
		case info.State != providers.StateActive:
			return providers.Info{}, nil, providers.NotActive(info, "create %s: it is %s", name, info.Status())
		default:
			return info, nil, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return providers.Info{}, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
		}
	}
}

// make claims or starts the sandbox whose name s holds. It closes s.ready in
// either case; the calls that wait for it look the name up again.
func (p *Provider) make(ctx context.Context, name string, s *sandbox, spec providers.Spec) (providers.Info, net.Conn, error) {
	c := &claim{name: name, spec: spec}
	conn, err := p.pools.Claim(ctx, spec, c)
	made := c.claimed
	if err == nil && conn == nil {
		made = s
		incarnation := rand.Text()
		if err = s.start(p.m, spec, incarnation); err == nil {
			if conn, err = s.dial(ctx); err != nil {
				err = errors.Join(err, s.stop())
			}
		}
		if err == nil {
			p.m.mu.Lock()
			s.made(spec, incarnation)
			p.m.mu.Unlock()
		}
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	defer close(s.ready)
	if err != nil {
		delete(p.m.sandboxes, name)
		return providers.Info{}, nil, fmt.Errorf("create %s: %w", name, err)
	}
	p.m.sandboxes[name] = made
	info := copyInfo(made.info)
	info.Created = true
	return info, conn, nil
}

// made sets the fields of a sandbox that is ready for its creation. The caller
// holds the machine's lock.
func (s *sandbox) made(spec providers.Spec, incarnation string) {
	now := time.Now()
	s.info.Spec, s.info.Incarnation = spec.WithoutSecrets(), incarnation
	s.info.State, s.info.CreateTime, s.info.LastActivity = providers.StateActive, now, now
	s.info.Runtime, s.info.NotEnforced = "none", []string{"everything: a fake isolates nothing"}
}

func (s *sandbox) start(m *Machine, spec providers.Spec, incarnation string) error {
	m.mu.Lock()
	m.sockets++
	s.socket = filepath.Join(m.dir, fmt.Sprintf("%d.sock", m.sockets))
	s.dir = filepath.Join(m.dir, fmt.Sprintf("%d", m.sockets))
	m.mu.Unlock()
	config := agent.Config{
		Incarnation: incarnation, Workdir: filepath.Join(s.dir, "workspace"), StateDir: filepath.Join(s.dir, "state"),
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir},
	}
	if spec.WorkingDirectory != "" && spec.WorkingDirectory != "/workspace" {
		config.Workdir = spec.WorkingDirectory
	}
	for k, v := range spec.Env {
		config.Env = append(config.Env, k+"="+v)
	}
	if m.config.Agent != nil {
		m.config.Agent(&config)
	}
	for _, dir := range []string{config.Workdir, config.StateDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		return err
	}
	s.agent, err = agent.New(config)
	if err != nil {
		return errors.Join(err, listener.Close(), os.RemoveAll(s.dir))
	}
	s.conns = &tracker{Listener: listener}
	s.served.Go(func() { _ = s.agent.Serve(s.conns) })
	return nil
}

func (s *sandbox) stop() error {
	// A connection without a handshake would delay the agent.
	s.conns.hangUp()
	s.agent.Close()
	s.served.Wait()
	return os.RemoveAll(s.dir)
}

// Get returns one sandbox.
func (p *Provider) Get(ctx context.Context, name string) (providers.Info, error) {
	if err := p.begin(ctx, "get", name); err != nil {
		return providers.Info{}, err
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	s := p.m.sandboxes[name]
	if s == nil {
		return providers.Info{}, fmt.Errorf("get %s: %w", name, providers.ErrNotFound)
	}
	return copyInfo(s.info), nil
}

// Update changes a sandbox's values.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	if err := p.begin(ctx, "update", name); err != nil {
		return providers.Info{}, err
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	s := p.m.sandboxes[name]
	if s == nil {
		return providers.Info{}, fmt.Errorf("update %s: %w", name, providers.ErrNotFound)
	}
	if s.info.State == providers.StateDeleting {
		return providers.Info{}, providers.NotActive(s.info, "update %s: it is %s", name, s.info.State)
	}
	c.ApplyTo(&s.info)
	return copyInfo(s.info), nil
}

// Delete ends a sandbox.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	if err := p.begin(ctx, "delete", name); err != nil {
		return err
	}
	return p.end(name, c)
}

func (p *Provider) end(name string, c providers.Condition) error {
	p.m.mu.Lock()
	s := p.m.sandboxes[name]
	if s == nil || s.info.State == providers.StateCreating {
		p.m.mu.Unlock()
		return fmt.Errorf("delete %s: %w", name, providers.ErrNotFound)
	}
	if c.Incarnation != "" && c.Incarnation != s.info.Incarnation {
		p.m.mu.Unlock()
		return fmt.Errorf("delete %s: %w", name, providers.ErrReplaced)
	}
	if s.info.State != providers.StateDeleting && c.InUse(s.info.LastActivity) {
		p.m.mu.Unlock()
		return fmt.Errorf("delete %s: %w", name, providers.ErrInUse)
	}
	if s.info.State == providers.StateDeleting {
		p.m.mu.Unlock()
		<-s.gone
		return fmt.Errorf("delete %s: %w", name, providers.ErrNotFound)
	}
	broken := s.info.State == providers.StateFailed
	s.info.State = providers.StateDeleting
	p.m.mu.Unlock()
	var err error
	if !broken {
		err = s.stop()
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	delete(p.m.sandboxes, name)
	close(s.gone)
	return err
}

// Dial connects to the agent's socket.
func (p *Provider) Dial(ctx context.Context, name string) (net.Conn, error) {
	if err := p.begin(ctx, "dial", name); err != nil {
		return nil, err
	}
	p.m.mu.Lock()
	s := p.m.sandboxes[name]
	var info providers.Info
	if s != nil {
		info = s.info
	}
	p.m.mu.Unlock()
	switch {
	case s == nil:
		return nil, fmt.Errorf("dial %s: %w", name, providers.ErrNotFound)
	case info.State != providers.StateActive:
		return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	return conn, nil
}

func (s *sandbox) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.socket)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, errors.Join(context.Cause(ctx), err)
	default:
		return nil, fmt.Errorf("%w: %w", providers.ErrUnavailable, err)
	}
}

// copyInfo keeps callers from sharing maps with the machine.
func copyInfo(i providers.Info) providers.Info {
	i.Spec.Labels = maps.Clone(i.Spec.Labels)
	i.Spec.Env = maps.Clone(i.Spec.Env)
	i.NotEnforced = slices.Clone(i.NotEnforced)
	return i
}
