package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/bench/report"
	sandgate "github.com/sandgate/sandgate/clients/go"
)

const poolConfig = `
templates:
  - name: default
    pool: 2
`

// raw is the server whose sandboxes are pods of its own, with a full pool.
func (b *bench) raw(ctx context.Context, by transport) (*server, error) {
	name := serverName(rawPods, by)
	if s := b.servers[name]; s != nil {
		return s, s.full(ctx)
	}
	namespace, err := b.Namespace(ctx)
	if err != nil {
		return nil, err
	}
	s, err := b.serve(ctx, name, rawPods, by, namespace, poolConfig, "--kubernetes-image", b.image, "--kubernetes-verify-network", "0s")
	if err != nil {
		return nil, err
	}
	return s, s.full(ctx)
}

// executeOnPod compares Execute of `true` with an exec by client-go on the same
// pod.
func (b *bench) executeOnPod(ctx context.Context, by transport) ([]report.Figure, error) {
	s, err := b.raw(ctx, by)
	if err != nil {
		return nil, err
	}
	return b.executeOn(ctx, s, by, rawPods, b.rawPod)
}

// executeOn compares on a new sandbox, whose pod find finds.
func (b *bench) executeOn(
	ctx context.Context, s *server, by transport, provider string, find func(context.Context, *server, *sandgate.Sandbox) (pod, error),
) ([]report.Figure, error) {
	sandbox, remove, err := s.create(ctx, "bench-execute")
	if err != nil {
		return nil, err
	}
	defer remove()
	p, err := find(ctx, s, sandbox)
	if err != nil {
		return nil, err
	}
	ours, plain, err := b.executions(ctx, s, sandbox, p)
	if err != nil {
		return nil, err
	}
	what := "Execute true, " + by.of(provider) + ", %s | client-go exec, same pod"
	must := report.Part(20)
	if by == "exec" {
		must = report.Part(15) // each message wakes six processes (docs/adr/0024)
	}
	return []report.Figure{
		report.Latency(fmt.Sprintf(what, "p50"), ours, plain, 0.5, must, report.Part(40)),
		report.Latency(fmt.Sprintf(what, "p95"), ours, plain, 0.95, report.Bound{}, report.Bound{}),
	}, nil
}

// rawPod finds a sandbox's pod. One from the pool has a name of its own; its UID
// is the incarnation.
func (b *bench) rawPod(ctx context.Context, s *server, sandbox *sandgate.Sandbox) (pod, error) {
	list, err := b.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return pod{}, err
	}
	for _, p := range list.Items {
		if string(p.UID) == sandbox.Incarnation {
			return pod{s.Namespace, p.Name, "sandbox"}, nil
		}
	}
	return pod{}, fmt.Errorf("sandbox %s has no pod", sandbox.ID())
}

// turn is how many executions of one side follow each other. What an exec leaves
// to be cleaned up by the node slows the next execution, and is to slow the next
// exec, whose price it is.
const turn = 10

// executions measures both in turns, so that a slow moment of the machine meets
// both.
func (b *bench) executions(ctx context.Context, s *server, sandbox *sandgate.Sandbox, p pod) (ours, plain report.Samples, err error) {
	// The pool's new pod must not start beside it.
	if err := s.full(ctx); err != nil {
		return nil, nil, err
	}
	for i := range b.count(15) + 1 {
		for side, run := range []func() error{
			func() error { return execute(ctx, sandbox) },
			func() error { return b.exec(ctx, p, "true") },
		} {
			for range turn {
				took, err := timed(run)
				if err != nil {
					return nil, nil, err
				}
				switch {
				case i == 0: // the first ones fill caches
				case side == 0:
					ours = append(ours, took)
				default:
					plain = append(plain, took)
				}
			}
		}
	}
	return ours, plain, nil
}

// createOnPod compares the time from Create to the end of a first `true` with
// execs on a pod that runs.
func (b *bench) createOnPod(ctx context.Context, by transport) ([]report.Figure, error) {
	s, err := b.raw(ctx, by)
	if err != nil {
		return nil, err
	}
	var ours, created, plain report.Samples
	n := b.count(6)
	for i := range n + 1 {
		if err := s.full(ctx); err != nil {
			return nil, err
		}
		took, sandbox, remove, err := firstCommand(ctx, s, fmt.Sprintf("bench-create-%d", i))
		if err != nil {
			return nil, err
		}
		yardstick, err := b.oneExec(ctx, s, sandbox)
		remove()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			ours, created, plain = append(ours, took.ended), append(created, took.created), append(plain, yardstick)
		}
	}
	return []report.Figure{
		report.Latency("create → first command, "+by.of(rawPods)+" | one client-go exec", ours, plain, 0.5, report.AtMost(2), report.AtMost(1)),
		{What: "  of it: Create", Ours: report.Milliseconds(created.Median())},
	}, nil
}

// oneExec measures one exec by client-go, while no other pod starts.
func (b *bench) oneExec(ctx context.Context, s *server, sandbox *sandgate.Sandbox) (time.Duration, error) {
	p, err := b.rawPod(ctx, s, sandbox)
	if err != nil {
		return 0, err
	}
	if err := s.full(ctx); err != nil {
		return 0, err
	}
	return timed(func() error { return b.exec(ctx, p, "true") })
}

// first is how long a sandbox took, until Create returned and until the end of a
// first `true`.
type first struct{ created, ended time.Duration }

// firstCommand measures that. The returned function deletes the sandbox.
func firstCommand(ctx context.Context, s *server, id string) (first, *sandgate.Sandbox, func(), error) {
	began := time.Now()
	sandbox, remove, err := s.create(ctx, id)
	if err != nil {
		return first{}, nil, nil, err
	}
	created := time.Since(began)
	if err := execute(ctx, sandbox); err != nil {
		remove()
		return first{}, nil, nil, err
	}
	return first{created, time.Since(began)}, sandbox, remove, nil
}
