package kubernetes

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
)

// awaitNetwork waits until a server reports whether network policies are enforced, and
// returns its description.
func awaitNetwork(t *testing.T, client *sandgate.Client, enforced bool, detail string) {
	t.Helper()
	for ctx := limit(t); ; {
		info, err := client.ServerInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range info.GetEnforcement() {
			if e.GetName() == "network" && e.GetEnforced() == enforced && strings.Contains(e.GetDetail(), detail) {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%v, never network %v: %s", info.GetEnforcement(), enforced, detail)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestVerifyNetwork has servers find out by two pods whether the cluster's network
// enforces policies, whatever their operator states: first it does not, then it does.
func TestVerifyNetwork(t *testing.T) {
	kube, _ := clientset(t)
	if os.Getenv("SANDGATE_CLUSTER") == "" {
		t.Skip("needs a cluster whose enforcement can be turned on: run make test-kubernetes without KUBECONFIG")
	}
	// verified serves a new namespace until the server reports what it found.
	verified := func(t *testing.T, enforced bool, agentImage, detail string) {
		t.Helper()
		config := rawConfig(t)
		config.AgentImage, config.VerifyNetwork, config.NetworkPolicies = agentImage, time.Hour, !enforced
		p := openRaw(t, config)
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		client := serve(t, server.Config{Provider: p})
		awaitNetwork(t, client, enforced, detail)
		box, _, err := client.Create(limit(t), sandgate.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		info, err := box.Info(limit(t))
		if err != nil || slices.Contains(info.GetIsolation().GetNotEnforced(), "network") == enforced {
			t.Errorf("the sandbox: %v, %v", info.GetIsolation(), err)
		}
		if err := box.Delete(limit(t)); err != nil {
			t.Error(err)
		}
		// A server that starts now knows it at once.
		second := openRaw(t, config)
		d, err := second.Describe(t.Context())
		if err != nil || !strings.Contains(d.Enforcement[4].Detail, detail) || d.Enforcement[4].Enforced != enforced {
			t.Errorf("a second server: %+v, %v", d.Enforcement[4], err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		for ctx := limit(t); ; {
			list, err := kube.CoreV1().Pods(config.Namespace).List(ctx, meta.ListOptions{LabelSelector: "sandgate.dev/kind=verifier"})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) == 0 {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	t.Run("S3-7 not enforced, with the agent written into the image of sandboxes", func(t *testing.T) {
		verified(t, false, "", "does not enforce it: a pod that it selects connected to another one")
	})
	enforce(t)
	t.Run("S3-7 enforced", func(t *testing.T) {
		verified(t, true, agentImage(), "kept a pod from another one")
	})
}
