package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
)

// cluster is the cluster that KUBECONFIG names.
type cluster struct {
	config  *rest.Config
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
	// namespaces are those that were made, to be deleted.
	namespaces []string
}

func newCluster() (*cluster, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, errors.New("KUBECONFIG names no cluster: run make bench-kubernetes")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // the yardstick must not wait for itself
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	return &cluster{config: config, client: client, dynamic: objects}, err
}

// namespace makes a namespace in which pods can start.
func (c *cluster) namespace(ctx context.Context) (string, error) {
	made, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	c.namespaces = append(c.namespaces, made.Name)
	return made.Name, wait(ctx, "the namespace's service account", func() (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		if kerrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// close deletes what was made. Pods of a bench have nothing to finish.
func (c *cluster) close() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, errors.New("deleting took over 30 s"))
	defer cancel()
	none := int64(0)
	for _, name := range c.namespaces {
		err := errors.Join(
			c.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}),
			c.client.CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &none}, metav1.ListOptions{}),
		)
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench-kubernetes: namespace %s is left over: %v\n", name, err)
		}
	}
}

// pod is where a command runs.
type pod struct{ namespace, name, container string }

// exec runs a command as a client of the API does: a new exec, by WebSocket, with
// both outputs collected.
func (c *cluster) exec(ctx context.Context, p pod, argv ...string) error {
	url := c.client.CoreV1().RESTClient().Post().Resource("pods").SubResource("exec").
		Namespace(p.namespace).Name(p.name).
		VersionedParams(&corev1.PodExecOptions{
			Container: p.container, Command: argv, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", url.String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}

// wait asks until something is as it should be, for at most two minutes.
func wait(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, fmt.Errorf("%s: not within two minutes", what))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
