//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/bench/cluster"
	"github.com/sandgate/sandgate/bench/report"
	sandgate "github.com/sandgate/sandgate/clients/go"
)

const (
	// reapInterval is the server's default. A shorter window has a shorter one.
	reapInterval = 15 * time.Second
	repeats      = 15
	// singlePodReads is the number of sandboxes up to which a server reads pods singly.
	singlePodReads = 32
	specimen       = "specimen"
)

func (o options) interval() time.Duration { return min(reapInterval, o.window/2) }

// configOf returns the server's configuration, with or without a pool.
func (o options) configOf(provider string, pool int) string {
	config := fmt.Sprintf("reaper: {interval: %v}\ntemplates:\n  - name: default\n", o.interval())
	if provider == "agentsandbox" {
		config += "    provider_options: {sandbox_template: box}\n"
	} else {
		config += "    provider_options: {disk_medium: Memory}\n"
	}
	if pool > 0 {
		config += fmt.Sprintf("    pool: %d\n", pool)
	}
	return config
}

// measure fills a namespace step by step and measures the same at each.
func (c *testbed) measure(ctx context.Context, provider string, t *table) (err error) {
	namespace, err := c.Namespace(ctx)
	if err != nil {
		return err
	}
	if provider == "agentsandbox" {
		if err := c.makeTemplate(ctx, namespace); err != nil {
			return err
		}
	}
	p, err := newProxy(c.Config)
	if err != nil {
		return err
	}
	defer p.close()
	through := filepath.Join(c.dir, "through-"+provider)
	if err := p.kubeconfig(through); err != nil {
		return err
	}
	m, err := c.first(ctx, provider, namespace)
	if err != nil {
		return err
	}
	for i, n := range []int{0, c.n / 10, c.n} {
		t.column(strconv.Itoa(n))
		if provider == "agentsandbox" && i == 1 {
			if err := c.control(ctx, "kill"); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.control(context.WithoutCancel(ctx), "start")) }()
		}
		before, began := c.stored(ctx), time.Now()
		if err := m.fill(ctx, n); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "scale: %s: %d copies after %v\n", provider, n, time.Since(began).Round(time.Second))
		if i == 2 {
			t.set("etcd, written for each sandbox", "%s", size((c.stored(ctx)-before)/int64(n-c.n/10)))
		}
		// Without its controller agent-sandbox creates nothing.
		lives := i == 0 || provider == "kubernetes"
		binaries := []string{c.binary}
		if c.beside != "" && i == 1 {
			binaries = append(binaries, c.beside)
		}
		for j, binary := range binaries {
			if j > 0 {
				t.column(fmt.Sprintf("%d, %s", n, filepath.Base(binary)))
			}
			t.others = j > 0
			r := trial{testbed: c, binary: binary, provider: provider, namespace: namespace, through: through, n: n, proxy: p, table: t}
			if err := errors.Join(r.direct(ctx), r.counted(ctx, lives)); err != nil {
				return fmt.Errorf("%s at %d: %w", binary, n, err)
			}
			if i == 2 && provider == "kubernetes" {
				if err := r.pooled(ctx); err != nil {
					return fmt.Errorf("%s with a pool: %w", binary, err)
				}
			}
		}
	}
	return nil
}

// trial is one server program on one number of sandboxes.
type trial struct {
	*testbed
	binary, provider, namespace string
	// through is the kubeconfig for connections through the proxy.
	through string
	n       int
	proxy   *proxy
	table   *table
}

// first creates the sandbox that is copied and that single calls name.
func (c *testbed) first(ctx context.Context, provider, namespace string) (*mold, error) {
	s, err := c.serve(ctx, c.binary, provider, namespace, os.Getenv("KUBECONFIG"), c.configOf(provider, 0))
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Stop() }()
	_, _, err = s.Client.Create(ctx, sandgate.CreateRequest{ID: specimen, Labels: map[string]string{"probe": "yes"}})
	if err != nil {
		return nil, s.Explain(err)
	}
	return c.newMold(ctx, provider, namespace)
}

// direct measures times and memory of a server without the proxy.
func (r trial) direct(ctx context.Context) error {
	t, n := r.table, r.n
	s, err := r.serve(ctx, r.binary, r.provider, r.namespace, os.Getenv("KUBECONFIG"), r.configOf(r.provider, 0))
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	t.set("start until it serves", "%s", short(s.Took))
	ask := func(line string, times int, do func() error) error {
		var took report.Samples
		for range times {
			began := time.Now()
			if err := do(); err != nil {
				return s.Explain(fmt.Errorf("%s: %w", line, err))
			}
			took = append(took, time.Since(began))
		}
		t.set(line, "%s", short(took.Median()))
		return nil
	}
	// The first calls fill the server's caches.
	if err := s.get(ctx); err != nil {
		return err
	}
	all := func() error { return s.list(ctx, sandgate.ListRequest{PageSize: 1000}, n+1) }
	err = errors.Join(
		ask("Get, p50", repeats, func() error { return s.get(ctx) }),
		ask("List, a page of 100, p50", repeats, func() error { return s.list(ctx, sandgate.ListRequest{PageSize: 100}, min(100, n+1)) }),
		ask("List by a label that one has, p50", repeats, func() error {
			return s.list(ctx, sandgate.ListRequest{Labels: map[string]string{"probe": "yes"}}, 1)
		}),
	)
	if err != nil {
		return err
	}
	began, used := r.apiSeconds(ctx), s.cpu()
	if err := ask("List, all in pages of 1 000, p50", 3, all); err != nil {
		return err
	}
	t.set("… processor time of API server · of the server, each", "%s · %s", short((r.apiSeconds(ctx)-began)/3), short((s.cpu()-used)/3))
	t.set("memory after that: anonymous · peak of all", "%s · %s", size(s.memory("RssAnon")), size(s.memory("VmHWM")))
	return nil
}

func (s server) get(ctx context.Context) error {
	_, err := s.Client.Get(ctx, specimen)
	return err
}

// list lists at least that many.
func (s server) list(ctx context.Context, r sandgate.ListRequest, want int) error {
	got := 0
	for _, err := range s.Client.List(ctx, r) {
		if err != nil {
			return err
		}
		if got++; got == want {
			return nil
		}
	}
	return fmt.Errorf("the list has %d sandboxes, want %d", got, want)
}

// counted counts the requests to the API server by each call, and by the server on its
// own.
func (r trial) counted(ctx context.Context, lives bool) error {
	p, t, n := r.proxy, r.table, r.n
	s, err := r.serve(ctx, r.binary, r.provider, r.namespace, r.through, r.configOf(r.provider, 0))
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	calls, bytes := total(p.take())
	t.set("start: calls · from the API server", "%d · %s", calls, size(bytes))
	if err := s.get(ctx); err != nil {
		return err
	}
	// First the idle server: its memory without any call.
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(2 * time.Second):
	}
	p.take()
	used, began := s.cpu(), r.apiSeconds(ctx)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(r.window):
	}
	idle, api := p.take(), r.apiSeconds(ctx)-began
	rounds := r.window.Seconds() / r.interval().Seconds()
	calls, bytes = total(without(idle, "lease", "sweep", "pool"))
	// A page of 500 is one or two calls, and a window may hold one round more.
	t.atMost("calls of reap rounds", calls, int(rounds+1)*(2*(n/500+1)+1))
	t.set("a reap round: calls · from the API server", "%.0f · %s", float64(calls)/rounds, size(int64(float64(bytes)/rounds)))
	t.set("all that a server does by itself, per minute: calls · processor time", "%.0f · %s",
		float64(sum(idle))/r.window.Minutes(), short(time.Duration(float64(s.cpu()-used)/r.window.Minutes())))
	t.set("… processor time of API server, per minute, with what others ask of it", "%s", short(time.Duration(float64(api)/r.window.Minutes())))
	t.set("memory of an idle server: anonymous", "%s", size(s.memory("RssAnon")))

	ask := func(line string, most int, do func() error) error {
		// The server's own requests may fall into it; the smallest count is the call's.
		var least map[string]count
		for range 3 {
			p.take()
			if err := do(); err != nil {
				return s.Explain(fmt.Errorf("%s: %w", line, err))
			}
			now := without(p.take(), "lease", "sweep", "pool")
			if least == nil || sum(now) < sum(least) {
				least = now
			}
		}
		calls, bytes := total(least)
		t.atMost("calls for "+line, calls, most)
		t.set(line+": calls · from the API server", "%d · %s", calls, size(bytes))
		return nil
	}
	singly := 0
	if n <= singlePodReads {
		singly = n
	}
	err = errors.Join(
		ask("Get", 2, func() error { return s.get(ctx) }),
		ask("List, a page of 100", 4+singly, func() error { return s.list(ctx, sandgate.ListRequest{PageSize: 100}, min(100, n+1)) }),
		ask("List, all in pages of 1 000", 14*(n/1000+1)+singly, func() error { return s.list(ctx, sandgate.ListRequest{PageSize: 1000}, n+1) }),
	)
	if err != nil || !lives {
		return err
	}
	return r.lives(ctx, s)
}

func sum(counts map[string]count) int {
	calls, _ := total(counts)
	return calls
}

// lives creates and deletes real sandboxes among the copies.
func (r trial) lives(ctx context.Context, s server) error {
	p, t := r.proxy, r.table
	var creating, deleting report.Samples
	var made, gone map[string]count
	for i := range 5 {
		id := fmt.Sprintf("real-%d", i)
		p.take()
		began := time.Now()
		if _, _, err := s.Client.Create(ctx, sandgate.CreateRequest{ID: id}); err != nil {
			return s.Explain(fmt.Errorf("create: %w", err))
		}
		creating = append(creating, time.Since(began))
		made = without(p.take(), "lease", "sweep")
		began = time.Now()
		if _, err := s.Client.Delete(ctx, id); err != nil {
			return s.Explain(fmt.Errorf("delete: %w", err))
		}
		deleting = append(deleting, time.Since(began))
		gone = without(p.take(), "lease", "sweep")
	}
	t.set("Create without a pool, p50: calls", "%s: %d", short(creating.Median()), sum(made))
	t.set("Delete, p50: calls", "%s: %d", short(deleting.Median()), sum(gone))
	fmt.Fprintf(os.Stderr, "scale: create: %s; delete: %s\n", spell(made), spell(gone))
	return nil
}

// pooled measures the cost of a large pool. One of its pods is real.
func (r trial) pooled(ctx context.Context) error {
	p, t := r.proxy, r.table
	s, err := r.serve(ctx, r.binary, r.provider, r.namespace, os.Getenv("KUBECONFIG"), r.configOf(r.provider, 1))
	if err != nil {
		return err
	}
	err = cluster.Wait(ctx, "a pool of one", func() (bool, error) {
		status, err := s.Client.PoolStatus(ctx, "default")
		return status.GetAvailable() == 1, err
	})
	if err := errors.Join(err, s.Stop()); err != nil {
		return s.Explain(err)
	}
	list, err := r.Dynamic.Resource(pods).Namespace(r.namespace).List(ctx, meta.ListOptions{LabelSelector: "sandgate.dev/use=ready"})
	if err != nil || len(list.Items) != 1 {
		return fmt.Errorf("%d pods in a pool of one: %w", len(list.Items), err)
	}
	m := &mold{c: r.testbed, namespace: r.namespace, pod: &list.Items[0]}
	for i := 1; i < r.pool; i++ {
		if _, err := m.put(ctx, pods, m.copyPod(fmt.Sprintf("%s-%d", m.pod.GetName(), i))); err != nil {
			return err
		}
	}
	if s, err = r.serve(ctx, r.binary, r.provider, r.namespace, r.through, r.configOf(r.provider, r.pool)); err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	err = cluster.Wait(ctx, "a large pool", func() (bool, error) {
		status, err := s.Client.PoolStatus(ctx, "default")
		return int(status.GetAvailable()) == r.pool, err
	})
	if err != nil {
		return err
	}
	p.take()
	used := s.cpu()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(r.window):
	}
	kept := p.take()["pool"]
	// Its leader's heartbeat, and an occasional check.
	t.atMost("calls for a pool per minute", int(float64(kept.calls)/r.window.Minutes()), 120)
	t.set(fmt.Sprintf("a pool of %d, per minute: calls · from the API server · processor time", r.pool), "%.0f · %s · %s",
		float64(kept.calls)/r.window.Minutes(), size(int64(float64(kept.bytes)/r.window.Minutes())),
		short(time.Duration(float64(s.cpu()-used)/r.window.Minutes())))
	return nil
}

// makeTemplate creates the SandboxTemplate of agent-sandbox's sandboxes.
func (c *testbed) makeTemplate(ctx context.Context, namespace string) error {
	return c.Make(ctx, cluster.Templates, "SandboxTemplate", namespace, "box", map[string]any{"podTemplate": map[string]any{"spec": map[string]any{
		"dnsPolicy": "Default", "terminationGracePeriodSeconds": int64(0),
		"containers": []any{map[string]any{
			"name": "main", "image": c.image, "command": []any{"sleep", "360000"},
			"resources": map[string]any{"limits": map[string]any{"memory": "256Mi"}, "requests": map[string]any{"cpu": "10m"}},
		}},
	}}})
}

var metric = regexp.MustCompile(`(?m)^(process_cpu_seconds_total|apiserver_storage_size_bytes\{[^}]*\}) (\S+)$`)

// metrics returns metrics of the API server.
func (c *testbed) metrics(ctx context.Context) (cpu, stored float64) {
	data, err := c.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, 0
	}
	for _, m := range metric.FindAllSubmatch(data, -1) {
		v, _ := strconv.ParseFloat(string(m[2]), 64)
		if string(m[1]) == "process_cpu_seconds_total" {
			cpu = v
		} else {
			stored += v
		}
	}
	return cpu, stored
}

func (c *testbed) apiSeconds(ctx context.Context) time.Duration {
	cpu, _ := c.metrics(ctx)
	return time.Duration(cpu * float64(time.Second))
}

// stored returns the size of etcd's file.
func (c *testbed) stored(ctx context.Context) int64 {
	_, stored := c.metrics(ctx)
	return int64(stored)
}
