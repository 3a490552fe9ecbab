package main

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// pod is where a command runs.
type pod struct{ namespace, name, container string }

// exec runs a command as a client of the API does: a new exec, by WebSocket, with
// both outputs collected.
func (b *bench) exec(ctx context.Context, p pod, argv ...string) error {
	url := b.Client.CoreV1().RESTClient().Post().Resource("pods").SubResource("exec").
		Namespace(p.namespace).Name(p.name).
		VersionedParams(&corev1.PodExecOptions{
			Container: p.container, Command: argv, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(b.Config, "GET", url.String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}
