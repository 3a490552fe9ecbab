package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

var errSlowStart = fmt.Errorf("the sandbox did not become ready in the template's start_timeout_seconds: %w", providers.ErrStartTimeout)

// bringUp follows a pod until its agent has spoken and its setup script has
// run.
func (p *Provider) bringUp(ctx context.Context, pl *plan, pod *corev1.Pod) (net.Conn, error) {
	pod, err := p.awaitRunning(ctx, pl, pod)
	if err != nil {
		return nil, p.explain(ctx, pod, err)
	}
	conn, err := p.firstWords(ctx, pl, pod)
	if err != nil {
		return nil, p.explain(ctx, pod, err)
	}
	if pl.options.SetupScript == "" {
		return conn, nil
	}
	// The agent ends a silent connection before a long script has ended.
	_ = conn.Close()
	if err := p.setUp(ctx, pl, pod); err != nil {
		return nil, err
	}
	if conn, err = p.firstWords(ctx, pl, pod); err != nil {
		return nil, p.explain(ctx, pod, err)
	}
	return conn, nil
}

// awaitRunning returns when the sandbox's container runs. Where no agent image
// brings the agent, it is written as soon as its container waits for it.
func (p *Provider) awaitRunning(ctx context.Context, pl *plan, made *corev1.Pod) (*corev1.Pod, error) {
	return p.follow(ctx, pl, made, func(pod *corev1.Pod) (bool, error) {
		return running(pod.Status.ContainerStatuses, containerName), nil
	})
}

// follow calls see with each state of a pod while that may still become what is
// expected, and returns the last state.
func (p *Provider) follow(ctx context.Context, pl *plan, made *corev1.Pod, see func(*corev1.Pod) (done bool, err error)) (*corev1.Pod, error) {
	watcher := kube.NewDiagnosis(kube.Grace{Unschedulable: time.Duration(pl.options.ScheduleTimeoutSeconds) * time.Second})
	last := made
	var writer agentWriter
	err := kube.Follow(ctx, p.podObject(made.Namespace, made.Name), func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists || pod.UID != made.UID {
			return false, fmt.Errorf("its pod was deleted by another client: %w", providers.ErrStartFailed)
		}
		last = pod
		if err := watcher.Check(pod); err != nil {
			return false, err
		}
		if p.config.AgentImage == "" && running(pod.Status.InitContainerStatuses, installerName) {
			if err := writer.write(func() error { return p.writeAgent(ctx, pod) }); err != nil {
				return false, err
			}
		}
		return see(pod)
	})
	return last, err
}

func running(statuses []corev1.ContainerStatus, name string) bool {
	return slices.ContainsFunc(statuses, func(c corev1.ContainerStatus) bool { return c.Name == name && c.State.Running != nil })
}

// agentWriter writes once. The container that waits for the agent ends when it
// has it, and may take the writing process along before that could say that all
// went well; only a container that goes on waiting has not got it.
type agentWriter struct {
	done    bool
	err     error
	doubted time.Time
}

// doubtTime is how long the container may still be seen to wait: a busy kubelet
// says late that it has ended.
const doubtTime = 20 * time.Second

func (w *agentWriter) write(write func() error) error {
	switch {
	case !w.done:
		w.done, w.err, w.doubted = true, write(), time.Now()
		if errors.Is(w.err, errWriterKilled) {
			return nil
		}
		return w.err
	case w.err != nil && time.Since(w.doubted) > doubtTime:
		return w.err
	default:
		return nil
	}
}

var errWriterKilled = fmt.Errorf("the writing process was killed: %w", providers.ErrStartFailed)

// writeAgentScript lets nothing of a broken transfer be taken for the agent.
const writeAgentScript = `set -e
t=` + agentPath + `.part
cat >"$t"
chmod 755 "$t"
"$t" version >/dev/null
mv "$t" ` + agentPath

// writeAgent writes the agent through the init container that waits for it.
func (p *Provider) writeAgent(ctx context.Context, pod *corev1.Pod) error {
	arch := runtime.GOARCH
	if a := pod.Spec.NodeSelector[corev1.LabelArchStable]; a != "" {
		arch = a
	}
	agent, err := p.config.Agent(arch)
	if err != nil {
		return fmt.Errorf("%w: %w", err, providers.ErrAgentCannotStart)
	}
	at := kube.Container{Namespace: pod.Namespace, Pod: pod.Name, Name: installerName}
	r, err := p.exec.Run(ctx, at, []string{"sh", "-c", writeAgentScript}, bytes.NewReader(agent))
	switch {
	case err != nil:
		return fmt.Errorf("write the agent: %w", err)
	case r.Code == killedCode:
		return fmt.Errorf("write the agent: %w", errWriterKilled)
	case r.Code != 0:
		return fmt.Errorf("write the agent: the image's sh, cat, chmod or mv ended with code %d: %s; configure an agent image to need none: %w",
			r.Code, kube.Shorten(strings.TrimSpace(string(r.Stderr))), providers.ErrAgentCannotStart)
	}
	return nil
}

// killedCode is the exit code of a process that was killed.
const killedCode = 128 + 9

const (
	firstWordsTries = 10
	firstWordsPause = 200 * time.Millisecond
)

// firstWords opens a connection on which the agent has spoken.
func (p *Provider) firstWords(ctx context.Context, pl *plan, pod *corev1.Pod) (net.Conn, error) {
	for try := 1; ; try++ {
		conn, err := p.openFirst(ctx, pod, try)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reach the agent: %w", context.Cause(ctx))
		}
		now, gone := p.pods(pod.Namespace).Get(ctx, pod.Name, getOptions)
		if gone == nil {
			if end := kube.Ended(now, containerName); end != nil {
				why := providers.ErrAgentCannotStart
				if len(pl.spec.Command) > 0 {
					why = providers.ErrStartFailed // of its command, as far as can be told
				}
				return nil, fmt.Errorf("the agent ended at once: %s: %w", end.Message, why)
			}
		}
		if try == firstWordsTries || kube.OutOfReach(err) || errors.Is(err, providers.ErrForbidden) {
			return nil, fmt.Errorf("the agent does not answer: %w: %w", err, providers.ErrAgentCannotStart)
		}
		select {
		case <-ctx.Done():
		case <-time.After(firstWordsPause):
		}
	}
}

// setUp runs the template's script.
func (p *Provider) setUp(ctx context.Context, pl *plan, pod *corev1.Pod) error {
	at := kube.Container{Namespace: pod.Namespace, Pod: pod.Name, Name: containerName}
	// What the script starts must not inherit the agent's secret.
	script := `unset ` + secretVariable + `; cd "$1" && eval "$2"`
	r, err := p.exec.Run(ctx, at, []string{"/bin/sh", "-c", script, "sh", pl.workdir(), pl.options.SetupScript}, nil)
	switch {
	case err != nil:
		return fmt.Errorf("run the template's setup_script: %w", err)
	case r.Code != 0:
		output := strings.TrimSpace(string(r.Stderr))
		if output == "" {
			output = strings.TrimSpace(string(r.Stdout))
		}
		if output == "" {
			output = "it wrote nothing"
		}
		return fmt.Errorf("the template's setup_script ended with code %d: %s: %w", r.Code, kube.Shorten(output), providers.ErrStartFailed)
	}
	return nil
}

// explain adds the cluster's warnings about a pod that did not start.
func (p *Provider) explain(ctx context.Context, pod *corev1.Pod, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSlowStart) {
		return err
	}
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return kube.Explain(err, kube.Events(ask, p.Core, pod.Namespace, pod.UID))
}
