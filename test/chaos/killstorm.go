//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
)

// settleTime is the time after a restart within which everything must be consistent.
const settleTime = time.Minute

const stormConfig = `
auth: {tokens_file: %q}
reaper: {interval: 1s}
templates:
  - name: default
    resources: {memory_bytes: 268435456, max_processes: 64, disk_bytes: 67108864}
    pool: %d
`

// killStorm kills the server repeatedly while two tenants create, use and delete
// sandboxes. Then it checks each sandbox, deletes all, and checks for leftovers.
func killStorm(ctx context.Context, o options, transport string) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, errors.New("it took too long"))
	defer cancel()
	t, start := new(tally), time.Now()
	dir, err := os.MkdirTemp("", "sandgate-storm-")
	if err != nil {
		fmt.Println("chaos:", err)
		return false
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &storm{dir: dir, options: o, tally: t}
	if err := s.run(ctx, transport); err != nil {
		t.fail(err)
	}
	if len(t.failures) > 0 && s.host != nil {
		fmt.Printf("chaos: the server's log ends:\n%s\n", s.host.log.Tail(8000))
	}
	fmt.Printf("chaos: storm, transport %s: %d kills, %d calls, %d claims from the pool, %d sandboxes; %d failures; %.0f s\n",
		transport, t.restarts.Load(), t.jobs.Load(), t.claims.Load(), s.sandboxes(), len(t.failures), time.Since(start).Seconds())
	return len(t.failures) == 0
}

type storm struct {
	options
	dir     string
	tally   *tally
	host    *host
	tenants []*tenant
}

func (s *storm) sandboxes() (n int) {
	for _, t := range s.tenants {
		n += len(t.entries)
	}
	return n
}

func (s *storm) run(ctx context.Context, transport string) error {
	tokens, err := daemon.Tokens(ctx, daemon.Program(), filepath.Join(s.dir, "tokens.yaml"), "red", "blue")
	if err != nil {
		return err
	}
	for name, pool := range map[string]int{"pool.yaml": 3, "no-pool.yaml": 0} {
		text := fmt.Sprintf(stormConfig, filepath.Join(s.dir, "tokens.yaml"), pool)
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	// While no server runs, its port could be taken, even by a client's own call.
	address := "unix://" + filepath.Join(s.dir, "server.sock")
	h, err := newHost(ctx, transport, address, append([]string{"--config", filepath.Join(s.dir, "pool.yaml")}, s.serve...), s.tally)
	if err != nil {
		return err
	}
	s.host = h
	for name, token := range tokens {
		client, err := sandgate.NewClient(ctx, sandgate.WithAddress(h.address), sandgate.WithToken(token))
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		// A client retries only once a server has answered.
		if _, err := client.ServerInfo(ctx); err != nil {
			return err
		}
		s.tenants = append(s.tenants, &tenant{name: name, client: client})
	}
	err = s.killLoop(ctx)
	if err == nil {
		err = s.settle(ctx)
	}
	return errors.Join(err, s.cleanUp(ctx))
}

// killLoop runs the load and kills the server until the time is over, the last time
// in the middle of the load.
func (s *storm) killLoop(ctx context.Context) error {
	var work sync.WaitGroup
	stop := make(chan struct{})
	calls, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for i := range s.workers {
		t := s.tenants[i%len(s.tenants)]
		r := &worker{tenant: t, name: fmt.Sprintf("%s-%d", t.name, i), chance: rand.New(rand.NewPCG(s.seed, uint64(i)+1)), tally: s.tally}
		work.Go(func() { r.work(calls, stop) })
	}
	chance := rand.New(rand.NewPCG(s.seed, 0))
	end := time.Now().Add(s.storm)
	var err error
	for err == nil {
		time.Sleep(time.Duration(200+chance.IntN(2300)) * time.Millisecond)
		s.host.kill()
		s.tally.restarts.Add(1)
		if time.Now().After(end) || ctx.Err() != nil {
			break
		}
		err = s.host.start(ctx)
	}
	// The last kill hits calls that are not retried.
	close(stop)
	giveUp(errors.New("the storm is over"))
	work.Wait()
	if err != nil {
		return err
	}
	return s.host.start(ctx)
}

// settle waits until every entry has the expected state.
func (s *storm) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*settleTime, errors.New("it does not settle"))
	defer cancel()
	var errs []error
	for until := time.Now().Add(settleTime); ; time.Sleep(200 * time.Millisecond) {
		errs = nil
		early := true
		for _, t := range s.tenants {
			for _, err := range t.look(ctx) {
				early = early && errors.Is(err, errEarly)
				errs = append(errs, err)
			}
		}
		status, err := s.tenants[0].client.PoolStatus(ctx, "default")
		if err != nil {
			return err
		}
		if status.GetAvailable() != status.GetTarget() || status.GetTotal() != status.GetAvailable()+status.GetActive() {
			errs = append(errs, fmt.Errorf("the pool: %v: %w", status, errEarly))
		}
		if len(errs) == 0 || !early || time.Now().After(until) {
			return errors.Join(errs...)
		}
	}
}

// look checks a tenant's entries, and that it sees only its own sandboxes.
func (t *tenant) look(ctx context.Context) (errs []error) {
	known := make(map[string]bool)
	for _, e := range t.entries {
		known[e.id] = true
		if err := e.check(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	for info, err := range t.client.List(ctx, sandgate.ListRequest{}) {
		if err != nil {
			return append(errs, err)
		}
		if !known[info.GetSandboxId()] {
			errs = append(errs, fmt.Errorf("%s sees %s, which it never created", t.name, info.GetSandboxId()))
		}
	}
	return errs
}

// cleanUp deletes all sandboxes, restarts the server without a pool so that it deletes
// the unclaimed ones, and returns everything that is left behind.
func (s *storm) cleanUp(ctx context.Context) error {
	var errs []error
	s.host.uses.Loops() // so that Left knows them
	for _, t := range s.tenants {
		for info, err := range t.client.List(ctx, sandgate.ListRequest{}) {
			if err == nil {
				_, err = t.client.Delete(ctx, info.GetSandboxId())
			}
			if err != nil && !errors.Is(err, sandgate.ErrSandboxNotFound) {
				errs = append(errs, fmt.Errorf("delete: %w", err))
			}
		}
	}
	h := s.host
	h.kill()
	for i, arg := range h.args {
		if arg == filepath.Join(s.dir, "pool.yaml") {
			h.args[i] = filepath.Join(s.dir, "no-pool.yaml")
		}
	}
	if err := h.start(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, dir := range []string{"sandboxes", "pool", "locks", "runtime/runc"} {
		entries, err := os.ReadDir(filepath.Join(h.dir, "state/local", dir))
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range entries {
			errs = append(errs, fmt.Errorf("%s/%s is left", dir, e.Name()))
		}
	}
	return errors.Join(append(errs, h.clear())...)
}
