package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Container identifies the container in which a command runs.
type Container struct {
	Namespace, Pod string
	// Name of the container. Empty: the pod's first.
	Name string
}

func (c Container) String() string { return c.Namespace + "/" + c.Pod }

// Executor runs commands in containers through the API server. It needs the verbs
// create and, before Kubernetes 1.35, get on pods/exec. It is safe for concurrent
// use.
type Executor struct {
	config *rest.Config
	core   rest.Interface

	mu      sync.Mutex
	tunnels map[*tunnel]struct{}
	closing bool
	pending sync.WaitGroup
}

// NewExecutor returns an Executor. The client is that of the core API, such as
// clientset.CoreV1().RESTClient().
func NewExecutor(config *rest.Config, core rest.Interface) *Executor {
	config = rest.CopyConfig(config)
	config.Wrap(reportHandshake)
	return &Executor{config: config, core: core, tunnels: make(map[*tunnel]struct{})}
}

// Close ends all tunnels and returns when their connections are closed.
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

// Result is the output and the exit status of a command. Signal n is code 128+n.
type Result struct {
	Stdout, Stderr []byte
	Code           int
}

// outputLimit bounds the output of each stream that Run retains.
const outputLimit = 64 << 10

// Run runs one command to its end. It returns an error if the container could not
// be reached or the command not started; an exit code other than 0 is no error.
// When ctx ends, Run returns, but the command may continue: Kubernetes does not
// kill the processes of an exec. The stream ends then as well, at the latest when
// its handshake has timed out.
func (e *Executor) Run(ctx context.Context, at Container, command []string, stdin io.Reader) (Result, error) {
	var out, errOut tail
	options := remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errOut}
	ended := make(chan error, 1)
	go func() { ended <- e.stream(ctx, ctx, at, command, options) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r := Result{Stdout: out.bytes(), Stderr: errOut.bytes()}
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

func (e *Executor) url(at Container, command []string, options remotecommand.StreamOptions) *url.URL {
	return e.core.Post().Resource("pods").Namespace(at.Namespace).Name(at.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: at.Name, Command: command,
			Stdin: options.Stdin != nil, Stdout: options.Stdout != nil, Stderr: options.Stderr != nil,
		}, scheme.ParameterCodec).URL()
}

// execError maps the error of an exec. The pod may be missing or not running,
// which only a read of the pod can tell.
func execError(ctx context.Context, at Container, err error) error {
	what := "exec in pod " + at.String()
	if expired(ctx) {
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

// tail retains the last bytes that were written to it. It is safe for concurrent
// use: a command may go on writing after Run has returned.
type tail struct {
	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - outputLimit; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.data...)
}
