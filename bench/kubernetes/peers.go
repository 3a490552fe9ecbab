package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sandgate/sandgate/bench/report"
)

// besideLangchainKubernetes compares Sandgate's Python client with
// langchain-kubernetes in its raw mode: both make pods of the same image and keep
// a pool of two.
func besideLangchainKubernetes(ctx context.Context, b *bench) ([]report.Figure, error) {
	const name = "langchain-kubernetes"
	interpreter, err := b.interpreter(name)
	if err != nil {
		return nil, err
	}
	s, err := b.raw(ctx, byExec)
	if err != nil {
		return nil, err
	}
	namespace, err := b.namespace(ctx)
	if err != nil {
		return nil, err
	}
	settings := map[string]any{"namespace": namespace, "image": b.image, "pool": poolSize}
	return b.beside(ctx, s, name+" raw", interpreter, name, settings, func() error { return s.full(ctx) })
}

// besideLangchainK8s compares Sandgate's Python client with langchain-k8s: both
// claim pods of the same SandboxTemplate, in which agent-sandbox's Python runtime
// runs, and the peer reaches them by its shortest way, the pod's address.
func besideLangchainK8s(ctx context.Context, b *bench) ([]report.Figure, error) {
	return b.besideClaims(ctx, "langchain-k8s", "runtime", withRuntime)
}

// besideSandboxd is the same with agent-sandbox's runtime in Go, for which
// langchain-k8s knows one way, a forwarded port.
func besideSandboxd(ctx context.Context, b *bench) ([]report.Figure, error) {
	return b.besideClaims(ctx, "langchain-k8s-sandboxd", "sandboxd", withSandboxd)
}

func (b *bench) besideClaims(
	ctx context.Context, backend, installed string, with func(spec corev1.PodSpec, directory string) corev1.PodSpec,
) ([]report.Figure, error) {
	interpreter, err := b.interpreter("langchain-k8s")
	if err != nil {
		return nil, err
	}
	directory := filepath.Join(b.peers, installed)
	if _, err := os.Stat(directory); err != nil {
		return nil, &report.CannotRun{Reason: installed + " of agent-sandbox is not installed: " + err.Error()}
	}
	for name := range b.servers {
		b.end(name) // its rows are done
	}
	s, err := b.claimed(ctx, backend, with(restricted(b.image), directory))
	if err != nil {
		return nil, err
	}
	settings := map[string]any{"namespace": s.namespace, "warm_pool": plainPool}
	return b.beside(ctx, s, backend, interpreter, backend, settings, func() error { return b.settled(ctx, s) })
}

func (b *bench) interpreter(peer string) (string, error) {
	path := filepath.Join(b.peers, peer, "bin", "python")
	if _, err := os.Stat(path); err != nil {
		return "", &report.CannotRun{Reason: fmt.Sprintf("%s is not installed: %v", peer, err)}
	}
	return path, nil
}

func (b *bench) beside(ctx context.Context, s *server, name, interpreter, backend string, settings map[string]any, settle func() error) ([]report.Figure, error) {
	ours, err := drive(b.python, "sandgate", nil, "SANDGATE_ADDRESS="+s.address)
	if err != nil {
		return nil, err
	}
	defer ours.close()
	theirs, err := drive(interpreter, backend, settings)
	if err != nil {
		return nil, err
	}
	defer theirs.close()
	return b.compare(ctx, name, ours, theirs, settle)
}

// withRuntime lets agent-sandbox's Python runtime be the pod's process.
func withRuntime(spec corev1.PodSpec, directory string) corev1.PodSpec {
	spec = withDirectory(spec, directory, "/runtime")
	main := &spec.Containers[0]
	main.Command = []string{"python3", "-m", "uvicorn", "main:app", "--app-dir", "/runtime", "--host", "0.0.0.0", "--port", "8888", "--log-level", "warning"}
	main.Env = append(main.Env, corev1.EnvVar{Name: "PYTHONPATH", Value: "/runtime/site-packages"})
	main.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8888)}},
		PeriodSeconds: 1,
	}
	return spec
}

// withSandboxd lets agent-sandbox's sandboxd be the pod's process. It listens on
// the loopback address, where no probe reaches it.
func withSandboxd(spec corev1.PodSpec, directory string) corev1.PodSpec {
	spec = withDirectory(spec, directory, "/sandboxd")
	spec.Containers[0].Command = []string{"/sandboxd/sandboxd", "--root-dir", "/workspace"}
	return spec
}

// withDirectory mounts a directory of the node, so the cluster has to run on this
// machine.
func withDirectory(spec corev1.PodSpec, directory, at string) corev1.PodSpec {
	main := &spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "peer", MountPath: at, ReadOnly: true})
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "peer", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: directory},
	}})
	return spec
}
