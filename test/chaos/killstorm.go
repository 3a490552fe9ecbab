//go:build linux

package main

import (
	"bytes"
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

// settleTime is how long after a restart everything must be as it should be.
const settleTime = time.Minute

const stormConfig = `
auth: {tokens_file: %q}
reaper: {interval: 1s}
templates:
  - name: default
    resources: {memory_bytes: 268435456, max_processes: 64, disk_bytes: 67108864}
    pool: %d
`

// killStorm kills the server again and again while two tenants make, use and
// delete sandboxes, then looks at every one of them, and at what is left of all
// when they are deleted.
func killStorm(ctx context.Context, o options, way string) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, errors.New("it took too long"))
	defer cancel()
	t, start := new(tally), time.Now()
	dir, err := os.MkdirTemp("", "sandgate-storm-")
	if err != nil {
		fmt.Println("chaos:", err)
		return false
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &siege{dir: dir, options: o, tally: t}
	if err := s.run(ctx, way); err != nil {
		t.fail(err)
	}
	if len(t.failures) > 0 && s.house != nil {
		fmt.Printf("chaos: the server's log ends:\n%s\n", s.house.log.Tail(8000))
	}
	fmt.Printf("chaos: storm, way %s: %d kills, %d calls, %d claims from the pool, %d sandboxes; %d failures; %.0f s\n",
		way, t.restarts.Load(), t.jobs.Load(), t.claims.Load(), s.sandboxes(), len(t.failures), time.Since(start).Seconds())
	return len(t.failures) == 0
}

type siege struct {
	options
	dir     string
	tally   *tally
	house   *house
	tenants []*tenant
}

func (s *siege) sandboxes() (n int) {
	for _, t := range s.tenants {
		n += len(t.entries)
	}
	return n
}

func (s *siege) run(ctx context.Context, way string) error {
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
	h, err := newHouse(ctx, way, address, append([]string{"--config", filepath.Join(s.dir, "pool.yaml")}, s.serve...), s.tally)
	if err != nil {
		return err
	}
	s.house = h
	for name, token := range tokens {
		client, err := sandgate.NewClient(ctx, sandgate.WithAddress(h.address), sandgate.WithToken(token))
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		// A client has no patience before it has once heard from a server.
		if _, err := client.ServerInfo(ctx); err != nil {
			return err
		}
		s.tenants = append(s.tenants, &tenant{name: name, client: client})
	}
	err = s.rage(ctx)
	if err == nil {
		err = s.settle(ctx)
	}
	return errors.Join(err, s.raze(ctx))
}

// rage lasts as long as was asked for and ends with a kill in the midst of it.
func (s *siege) rage(ctx context.Context) error {
	var work sync.WaitGroup
	stop := make(chan struct{})
	calls, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for i := range s.workers {
		t := s.tenants[i%len(s.tenants)]
		r := &raider{tenant: t, name: fmt.Sprintf("%s-%d", t.name, i), chance: rand.New(rand.NewPCG(s.seed, uint64(i)+1)), tally: s.tally}
		work.Go(func() { r.work(calls, stop) })
	}
	chance := rand.New(rand.NewPCG(s.seed, 0))
	end := time.Now().Add(s.storm)
	var err error
	for err == nil {
		time.Sleep(time.Duration(200+chance.IntN(2300)) * time.Millisecond)
		s.house.kill()
		s.tally.restarts.Add(1)
		if time.Now().After(end) || ctx.Err() != nil {
			break
		}
		err = s.house.start(ctx)
	}
	// The last kill meets calls that nobody repeats.
	close(stop)
	giveUp(errors.New("the storm is over"))
	work.Wait()
	if err != nil {
		return err
	}
	return s.house.start(ctx)
}

// settle waits until everything is as it should be.
func (s *siege) settle(ctx context.Context) error {
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

// look checks a tenant's ledger, and that it sees its own sandboxes only.
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
			errs = append(errs, fmt.Errorf("%s sees %s, which it never made", t.name, info.GetSandboxId()))
		}
	}
	return errs
}

// raze deletes all, has a server without a pool delete what nobody claimed, and
// returns what should not have been left.
func (s *siege) raze(ctx context.Context) error {
	var errs []error
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
	h := s.house
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
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && bytes.HasPrefix(data, []byte(h.dir+"/")) {
			errs = append(errs, fmt.Errorf("%s still has %s", file, bytes.TrimSpace(data)))
		}
	}
	return errors.Join(append(errs, h.clear())...)
}
