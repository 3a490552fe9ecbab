// Command network-policy enforces the cluster's NetworkPolicies on this machine
// with kube-router's firewall. It removes its rules when it gets SIGTERM or SIGINT.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of an account that may read nodes, pods, namespaces and policies")
	node := flag.String("node", "", "name of this machine's node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := enforce(ctx, *kubeconfig, *node); err != nil {
		fmt.Fprintln(os.Stderr, "network-policy:", err)
		os.Exit(1)
	}
}

func enforce(ctx context.Context, kubeconfig, node string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	settings := options.NewKubeRouterConfig()
	settings.HostnameOverride = node
	var sets sync.Mutex
	firewall, err := netpol.NewNetworkPolicyController(client, settings, pods, policies, namespaces, &sets)
	if err != nil {
		return err
	}
	pods.AddEventHandler(firewall.PodEventHandler)
	namespaces.AddEventHandler(firewall.NamespaceEventHandler)
	policies.AddEventHandler(firewall.NetworkPolicyEventHandler)

	// Each sync sends one; only the rest of kube-router has a use for them.
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	firewall.Run(heartbeats, ctx.Done(), &running)
	running.Wait()
	// A new one: this one's buffer may hold what a failed sync has left.
	new(netpol.NetworkPolicyController).Cleanup()
	return nil
}
