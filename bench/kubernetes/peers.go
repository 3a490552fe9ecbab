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
	var names []string
	for _, by := range transports {
		names = append(names, serverName(rawPods, by))
	}
	b.keep(names...)
	var servers []*server
	for _, by := range transports {
		s, err := b.raw(ctx, by)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	namespace, err := b.Namespace(ctx)
	if err != nil {
		return nil, err
	}
	defer b.remove(namespace)
	theirs, err := drive(interpreter, name, map[string]any{"namespace": namespace, "image": b.image, "pool": poolSize})
	if err != nil {
		return nil, err
	}
	defer theirs.close()
	settle := func() error {
		for _, s := range servers {
			if err := s.full(ctx); err != nil {
				return err
			}
		}
		return rest(ctx)
	}
	return b.beside(ctx, servers, &side{name: name, do: theirs.do}, settle)
}

// besideLangchainK8s compares Sandgate's Python client with langchain-k8s: both
// claim pods of the same SandboxTemplate, in which agent-sandbox's Python runtime
// runs, and the peer reaches them by its shortest route, the pod's address.
func besideLangchainK8s(ctx context.Context, b *bench) ([]report.Figure, error) {
	return b.besideClaims(ctx, "langchain-k8s", "runtime", withRuntime)
}

// besideSandboxd is the same with agent-sandbox's runtime in Go, for which
// langchain-k8s knows one transport, a forwarded port.
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
	b.clear()
	p := blueprint{backend, with(restricted(b.image), directory)}
	plain, err := b.plainly(ctx, p)
	if err != nil {
		return nil, err
	}
	var servers []*server
	for _, by := range transports {
		s, err := b.claimed(ctx, p, by)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	settle := func() error { return b.settled(ctx, plain, servers...) }
	if err := settle(); err != nil {
		return nil, err
	}
	theirs, err := drive(interpreter, backend, map[string]any{"namespace": plain, "warm_pool": plainPool})
	if err != nil {
		return nil, err
	}
	defer theirs.close()
	return b.beside(ctx, servers, &side{name: backend, do: theirs.do}, settle)
}

func (b *bench) interpreter(peer string) (string, error) {
	path := filepath.Join(b.peers, peer, "bin", "python")
	if _, err := os.Stat(path); err != nil {
		return "", &report.CannotRun{Reason: fmt.Sprintf("%s is not installed: %v", peer, err)}
	}
	return path, nil
}

// beside compares Sandgate's Python client, with a server for each transport, with a
// peer.
func (b *bench) beside(ctx context.Context, servers []*server, peer *side, settle func() error) ([]report.Figure, error) {
	var ours []*side
	for i, s := range servers {
		d, err := drive(b.python, "sandgate", nil, "SANDGATE_ADDRESS="+s.Address)
		if err != nil {
			return nil, err
		}
		defer d.close()
		ours = append(ours, &side{name: "by " + string(transports[i]), do: d.do})
	}
	return b.compare(ctx, ours, peer, settle)
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
