package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/providers/providertest"
)

// replica is one of several servers on one namespace.
type replica struct {
	process *exec.Cmd
	output  *bytes.Buffer
	client  *sandgate.Client
	audit   string
}

func startReplica(t *testing.T, namespace string) *replica {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("reaper: {interval: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &replica{output: new(bytes.Buffer), audit: filepath.Join(dir, "audit.log")}
	address := "unix://" + filepath.Join(dir, "s")
	r.process = exec.Command(binary("sandgate"), "serve", "--listen", address, "--provider", "kubernetes",
		"--state-dir", filepath.Join(dir, "state"), "--config", config, "--audit-file", r.audit,
		"--kubernetes-kubeconfig", os.Getenv("KUBECONFIG"), "--kubernetes-namespace", namespace,
		"--kubernetes-image", image(), "--kubernetes-agent-image", agentImage(), "--kubernetes-verify-network", "0s")
	r.process.Stderr = r.output
	if err := r.process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.process.Wait()
	}()
	t.Cleanup(func() {
		_ = r.process.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(r.output)
		}
	})
	var err error
	if r.client, err = sandgate.NewClient(t.Context(), sandgate.WithAddress(address), sandgate.WithInsecure()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() })
	ctx := limit(t)
	for {
		if _, err := r.client.ServerInfo(ctx); err == nil {
			return r
		}
		select {
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case <-ended:
			t.Fatalf("the server ended: %v\n%s", r.process.ProcessState, r.output)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// expired returns the audit records of deletions by the reaper.
func (r *replica) expired(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(r.audit)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(string(data), "\n"), func(line string) bool { return !strings.Contains(line, `"Expire"`) })
}

// holder waits until somebody else than before holds the reapers' lease.
func holder(t *testing.T, client kubernetes.Interface, namespace, before string) string {
	t.Helper()
	ctx := limit(t)
	for {
		lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, "sandgate-kubernetes-reaper", meta.GetOptions{})
		if err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != before && *lease.Spec.HolderIdentity != "" {
			return *lease.Spec.HolderIdentity
		}
		if err != nil && !kerrors.IsNotFound(err) {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the lease stays with %q", before)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// deletions counts the records that go, as the cluster tells of it.
func deletions(t *testing.T, client kubernetes.Interface, namespace string) func() map[string]int {
	t.Helper()
	records := client.CoreV1().ConfigMaps(namespace)
	selector := meta.ListOptions{LabelSelector: "sandgate.dev/kind=sandbox"}
	list, err := records.List(limit(t), selector)
	if err != nil {
		t.Fatal(err)
	}
	selector.ResourceVersion = list.ResourceVersion
	w, err := records.Watch(t.Context(), selector)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var work sync.WaitGroup
	gone := map[string]int{}
	work.Go(func() {
		for e := range w.ResultChan() {
			if cm, ok := e.Object.(*core.ConfigMap); ok && e.Type == watch.Deleted {
				mu.Lock()
				gone[cm.Annotations["sandgate.dev/id"]]++
				mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { w.Stop(); work.Wait() })
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		out := map[string]int{}
		for id, n := range gone {
			out[id] = n
		}
		return out
	}
}

// TestReaping: of two servers one reaps, and when it is killed the other does,
// at most a minute late.
func TestReaping(t *testing.T) {
	t.Parallel()
	t.Run("S3-16 S5-16 lifetimes hold over servers that are killed", reapingOnce)
}

func reapingOnce(t *testing.T) {
	client, _ := clientset(t)
	namespace := namespace(t, client)
	first := startReplica(t, namespace)
	leader := holder(t, client, namespace, "")
	second := startReplica(t, namespace)
	gone := deletions(t, client, namespace)
	make := func(r *replica, id string, ttl time.Duration) time.Time {
		t.Helper()
		sandbox, _, err := r.client.Create(limit(t), sandgate.CreateRequest{ID: id, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return sandbox.Created().GetExpireTime().AsTime()
	}
	until := func(id string, end time.Time) {
		t.Helper()
		ctx, cancel := context.WithDeadlineCause(t.Context(), end.Add(time.Minute), fmt.Errorf("%s is there a minute after its end", id))
		defer cancel()
		for gone()[id] == 0 {
			select {
			case <-ctx.Done():
				t.Fatal(context.Cause(ctx))
			case <-time.After(50 * time.Millisecond):
			}
		}
		if early := time.Until(end); early > 0 {
			t.Errorf("%s went %v too early", id, early)
		}
		t.Logf("%s went %v after its end", id, time.Since(end))
	}
	until("both", make(second, "both", 15*time.Second))
	if n := len(second.expired(t)); n != 0 {
		t.Errorf("one that does not lead has %d records of deletions", n)
	}
	end := make(first, "killed", 20*time.Second)
	killed := time.Now()
	if err := first.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	holder(t, client, namespace, leader)
	t.Logf("the leader was replaced after %v", time.Since(killed))
	until("killed", end)
	// The record is written after the deletion.
	for ctx := limit(t); len(second.expired(t)) == 0 && ctx.Err() == nil; {
		time.Sleep(50 * time.Millisecond)
	}
	for _, r := range []*replica{first, second} {
		if records := r.expired(t); len(records) != 1 {
			t.Errorf("records of deletions: %q", records)
		}
	}
	for id, n := range gone() {
		if n != 1 {
			t.Errorf("%s was deleted %d times", id, n)
		}
	}
}

// TestLeaseAccess: a server that may not use leases reports it at its start. One
// with the chart's rules can lead, and wait for what another server makes.
func TestLeaseAccess(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	config := rawConfig(t)
	config.AgentImage = agentImage()
	rules := chartRules(t, "kubernetes")
	for i := range rules {
		if slices.Contains(rules[i].Resources, "leases") {
			rules = slices.Delete(rules, i, i+1)
			break
		}
	}
	without := config
	without.Kubeconfig = account(t, client, config.Namespace, rules)
	if p, err := raw.New(t.Context(), without); !errors.Is(err, providers.ErrForbidden) || !strings.Contains(fmt.Sprint(err), "leases") {
		t.Errorf("without the right to use leases: %v", err)
		if err == nil {
			_ = p.Close()
		}
	}
	config = rawConfig(t)
	config.AgentImage = agentImage()
	config.Kubeconfig = account(t, client, config.Namespace, chartRules(t, "kubernetes"))
	one, two := openRaw(t, config), openRaw(t, config)
	defer func() { _, _ = one.Close(), two.Close() }()
	ctx, stop := context.WithCancelCause(limit(t))
	leads := make(chan struct{})
	var leading sync.WaitGroup
	leading.Go(func() {
		one.Lead(ctx, func(ctx context.Context) {
			close(leads)
			<-ctx.Done()
		})
	})
	select {
	case <-leads:
	case <-ctx.Done():
		t.Error(context.Cause(ctx))
	}
	stop(nil)
	leading.Wait()
	var race sync.WaitGroup
	var made atomic.Int32
	for _, p := range []*raw.Provider{one, two} {
		race.Go(func() {
			info, err := providertest.Create(limit(t), p, "same", rawSpec("same", ""))
			if err != nil {
				t.Error(err)
			}
			if info.Created {
				made.Add(1)
			}
		})
	}
	race.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("%d of two creations at once have made the sandbox", n)
	}
	if err := one.Delete(limit(t), "same", providers.Condition{}); err != nil {
		t.Error(err)
	}
}
