package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// way is how the server reaches its pods.
type way string

const (
	byExec    way = "exec"
	byAddress way = "pod-ip"
)

// rawName is the provider in the report.
func (w way) rawName() string {
	if w == byExec {
		return "kubernetes"
	}
	return "kubernetes by " + string(w)
}

// raw is the server whose sandboxes are pods of its own, with a full pool.
func (b *bench) raw(ctx context.Context, w way) (*server, error) {
	name := "kubernetes-" + string(w)
	if s := b.servers[name]; s != nil {
		return s, s.full(ctx)
	}
	namespace, err := b.namespace(ctx)
	if err != nil {
		return nil, err
	}
	s, err := b.serve(ctx, name, namespace, poolConfig,
		"--provider", "kubernetes", "--kubernetes-image", b.image, "--kubernetes-way", string(w))
	if err != nil {
		return nil, err
	}
	return s, s.full(ctx)
}

// executeOnPod compares Execute of `true` with an exec by client-go on the same
// pod.
func executeOnPod(w way) measurement {
	return func(ctx context.Context, b *bench) ([]report.Figure, error) {
		s, err := b.raw(ctx, w)
		if err != nil {
			return nil, err
		}
		return b.executeOn(ctx, s, w.rawName(), b.rawPod)
	}
}

// executeOn compares on a new sandbox, whose pod find finds.
func (b *bench) executeOn(
	ctx context.Context, s *server, provider string, find func(context.Context, *server, *sandgate.Sandbox) (pod, error),
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
	return b.executions(ctx, s, provider, sandbox, p)
}

// rawPod finds a sandbox's pod. One from the pool has a name of its own; its UID
// is the incarnation.
func (b *bench) rawPod(ctx context.Context, s *server, sandbox *sandgate.Sandbox) (pod, error) {
	list, err := b.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return pod{}, err
	}
	for _, p := range list.Items {
		if string(p.UID) == sandbox.Incarnation {
			return pod{s.namespace, p.Name, "sandbox"}, nil
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
func (b *bench) executions(ctx context.Context, s *server, provider string, sandbox *sandgate.Sandbox, p pod) ([]report.Figure, error) {
	// The pool's new pod must not start beside it.
	if err := s.full(ctx); err != nil {
		return nil, err
	}
	var ours, plain report.Samples
	for i := range b.count(20) + 1 {
		for side, run := range []func() error{
			func() error { return execute(ctx, sandbox) },
			func() error { return b.exec(ctx, p, "true") },
		} {
			for range turn {
				took, err := timed(run)
				if err != nil {
					return nil, err
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
	what := "Execute true, " + provider + ", %s | client-go exec, same pod"
	return []report.Figure{
		report.Latency(fmt.Sprintf(what, "p50"), ours, plain, 0.5, report.Part(20), report.Part(40)),
		report.Latency(fmt.Sprintf(what, "p95"), ours, plain, 0.95, report.Bound{}, report.Bound{}),
	}, nil
}

// createOnPod compares the time from Create to the end of a first `true` with
// execs on a pod that runs.
func createOnPod(w way) measurement {
	return func(ctx context.Context, b *bench) ([]report.Figure, error) { return b.createOnPod(ctx, w) }
}

func (b *bench) createOnPod(ctx context.Context, w way) ([]report.Figure, error) {
	s, err := b.raw(ctx, w)
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
		report.Latency("create → first command, "+w.rawName()+", warm | one client-go exec", ours, plain, 0.5, report.AtMost(2), report.AtMost(1)),
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

// copyBesideKubectl compares the two commands that copy a file into a pod and out
// of it, with their start: sandgate cp, which checks a SHA-256, and kubectl cp.
func copyBesideKubectl(w way) measurement {
	return func(ctx context.Context, b *bench) ([]report.Figure, error) { return b.copyBesideKubectl(ctx, w) }
}

func (b *bench) copyBesideKubectl(ctx context.Context, w way) ([]report.Figure, error) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		return nil, &report.CannotRun{Reason: err.Error()}
	}
	s, err := b.raw(ctx, w)
	if err != nil {
		return nil, err
	}
	sandbox, remove, err := s.create(ctx, "bench-copy")
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := s.full(ctx); err != nil {
		return nil, err
	}
	size := max(1<<20, int64(200*(1<<20)*b.scale))
	local := filepath.Join(b.dir, "payload")
	if err := payload(local, size); err != nil {
		return nil, err
	}
	p, err := b.rawPod(ctx, s, sandbox)
	if err != nil {
		return nil, err
	}
	inPod := func(name string) string { return fmt.Sprintf("%s/%s:/workspace/%s", p.namespace, p.name, name) }
	ours := func(from, to string) error {
		cmd := exec.CommandContext(ctx, b.binary, "cp", "--quiet", from, to)
		cmd.Env = append(os.Environ(), "SANDGATE_ADDRESS="+s.address)
		return quiet(cmd)
	}
	theirs := func(from, to string) error {
		return quiet(exec.CommandContext(ctx, "kubectl", "cp", "-c", p.container, from, to))
	}
	var took [4]report.Samples
	var failures int
	var note string
	const rounds = 3
	for range rounds {
		for i, step := range []func() error{
			func() error { return ours(local, "bench-copy:/workspace/ours") },
			func() error { return theirs(local, inPod("theirs")) },
			func() error { return ours("bench-copy:/workspace/ours", filepath.Join(b.dir, "ours")) },
			func() error { return theirs(inPod("theirs"), filepath.Join(b.dir, "theirs")) },
		} {
			d, err := timed(step)
			for i%2 == 1 && err != nil && failures < mayFail && ctx.Err() == nil {
				failures++
				note = fmt.Sprintf("kubectl cp failed %d times and was run again: %v", failures, err)
				d, err = timed(step)
			}
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d)
		}
		for _, name := range []string{"ours", "theirs"} {
			path := filepath.Join(b.dir, name)
			if err := quiet(exec.CommandContext(ctx, "cmp", local, path)); err != nil {
				return nil, fmt.Errorf("what came back is not what went up: %w", err)
			}
			if err := os.Remove(path); err != nil {
				return nil, err
			}
		}
	}
	what := fmt.Sprintf("%d MiB %%s, %s | kubectl cp, same pod", size>>20, w.rawName())
	up := report.Throughput(fmt.Sprintf(what, "up"), size, took[0], took[1], report.AtLeast(1), report.Bound{})
	down := report.Throughput(fmt.Sprintf(what, "down"), size, took[2], took[3], report.AtLeast(1), report.Bound{})
	down.Note = note
	return []report.Figure{up, down}, nil
}

// mayFail is how often kubectl cp may lose the end of a file, as it does on a busy
// machine.
const mayFail = 5

// payload writes a file that does not compress.
func payload(path string, size int64) error {
	from, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	defer to.Close()
	_, err = io.CopyN(to, from, size)
	return err
}

// quiet runs a program and shows what it wrote only when it failed.
func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}
