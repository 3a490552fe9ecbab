// Package cluster is what the measurements on Kubernetes share: the cluster that
// KUBECONFIG names, namespaces of their own on it, and servers that use it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNone says that KUBECONFIG names no cluster.
var ErrNone = errors.New("KUBECONFIG names no cluster")

// Cluster is the cluster that KUBECONFIG names. Safe for one goroutine where it
// makes namespaces, and for several otherwise.
type Cluster struct {
	Config  *rest.Config
	Client  *kubernetes.Clientset
	Dynamic dynamic.Interface
	// Namespaces are those that Namespace made, for the caller to delete.
	Namespaces []string

	prefix string
}

// Connect reads the file that KUBECONFIG names; ErrNone when that is empty. The
// cluster is not asked. Names of namespaces will begin with the prefix.
func Connect(prefix string) (*Cluster, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, ErrNone
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	// A yardstick must not wait for itself, nor spend its time on packing.
	config.QPS, config.DisableCompression = -1, true
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{Config: config, Client: client, Dynamic: objects, prefix: prefix}, nil
}

// Namespace makes a namespace, and returns when pods can start in it. On an error
// it may have been made: Namespaces tells.
func (c *Cluster) Namespace(ctx context.Context) (string, error) {
	made, err := c.Client.CoreV1().Namespaces().Create(ctx, &core.Namespace{
		ObjectMeta: meta.ObjectMeta{GenerateName: c.prefix},
	}, meta.CreateOptions{})
	if err != nil {
		return "", err
	}
	c.Namespaces = append(c.Namespaces, made.Name)
	return made.Name, Wait(ctx, "the namespace's service account", func() (bool, error) {
		_, err := c.Client.CoreV1().ServiceAccounts(made.Name).Get(ctx, "default", meta.GetOptions{})
		if kerrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// patience is how long Wait waits.
const patience = 5 * time.Minute

// Wait asks every 50 ms until something is as it should be, for at most five
// minutes. An error of done, or the end of ctx, ends it.
func Wait(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s: not within %v", what, patience))
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
