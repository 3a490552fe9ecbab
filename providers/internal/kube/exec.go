package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/sandgate/sandgate/providers"
)

// Container is where a command runs.
type Container struct {
	Namespace, Pod string
	// Name of the container. Empty: the pod's first.
	Name string
}

func (c Container) String() string { return c.Namespace + "/" + c.Pod }

// Executor runs commands in containers through the API server, which needs the
// verbs create and, before Kubernetes 1.35, get on pods/exec. It is safe for
// concurrent use.
type Executor struct {
	config *rest.Config
	core   rest.Interface

	mu      sync.Mutex
	tunnels map[*tunnel]struct{}
	closing bool
	pending sync.WaitGroup
}

// NewExecutor makes an Executor. The client is the core API's, such as
// clientset.CoreV1().RESTClient().
func NewExecutor(config *rest.Config, core rest.Interface) *Executor {
	return &Executor{config: config, core: core, tunnels: make(map[*tunnel]struct{})}
}

// Close ends all tunnels and returns when all that carried them is gone.
func (e *Executor) Close() {
	e.mu.Lock()
	e.closing = true
	open := make([]*tunnel, 0, len(e.tunnels))
	for t := range e.tunnels {
		open = append(open, t)
	}
	e.mu.Unlock()
	for _, t := range open {
		_ = t.Close()
	}
	e.pending.Wait()
}

// Result is what a command that ended left behind. A signal n is code 128+n.
type Result struct {
	Stdout, Stderr []byte
	// Truncated is true when more was written than is kept.
	Truncated bool
	Code      int
}

// outputLimit is how much of each stream Run keeps.
const outputLimit = 64 << 10

// Run runs one command to its end. An exit code other than 0 is no error; the
// error is that of reaching the container or starting the command. When ctx
// ends, Run returns, but the command may run on: Kubernetes does not kill what
// an exec started.
func (e *Executor) Run(ctx context.Context, at Container, command []string, stdin io.Reader) (Result, error) {
	var out, errOut tail
	options := remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errOut}
	err := e.stream(ctx, at, command, options)
	r := Result{Stdout: out.bytes(), Stderr: errOut.bytes(), Truncated: out.cut() || errOut.cut()}
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		r.Code = exit.Code
		return r, nil
	}
	if err != nil {
		return r, execError(ctx, at, err)
	}
	return r, nil
}

// stream runs a command with its streams.
func (e *Executor) stream(ctx context.Context, at Container, command []string, options remotecommand.StreamOptions) error {
	executor, err := remotecommand.NewWebSocketExecutor(e.config, http.MethodGet, e.url(at, command, options).String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}

func (e *Executor) url(at Container, command []string, options remotecommand.StreamOptions) *url.URL {
	return e.core.Post().Resource("pods").Namespace(at.Namespace).Name(at.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: at.Name, Command: command,
			Stdin: options.Stdin != nil, Stdout: options.Stdout != nil, Stderr: options.Stderr != nil,
		}, scheme.ParameterCodec).URL()
}

// execError says what an exec that failed means. It may be that the pod is not
// there or does not run: whoever wants to know looks at the pod.
func execError(ctx context.Context, at Container, err error) error {
	what := "exec in pod " + at.String()
	if over(ctx) {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) {
		err = upgrade.Cause
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && !apierrors.IsBadRequest(err) {
		return Wrap(ctx, what, err)
	}
	return fmt.Errorf("%s: %w: %w", what, err, providers.ErrUnavailable)
}

// tail keeps the last bytes that were written to it. It is safe for concurrent
// use: what runs in a container may write on after Run has returned.
type tail struct {
	mu   sync.Mutex
	data []byte
	more bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - outputLimit; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
		t.more = true
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.data...)
}

func (t *tail) cut() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.more
}
