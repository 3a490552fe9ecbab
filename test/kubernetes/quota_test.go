package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/daemon"
)

// Two servers on one cluster never exceed a tenant's quota together, whatever is created
// at the same time, and a server that comes after a killed one knows what there is.
func TestQuotaOverTwoServers(t *testing.T) {
	t.Parallel()
	const most, calls = 3, 16
	client, _ := clientset(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("kubernetes: {kubeconfig: %q, namespace: %q, transport: exec}\nquotas: {tenant: {max_sandboxes: %d}}\n",
		os.Getenv("KUBECONFIG"), namespace(t, client), most)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() (*daemon.Daemon, sandboxv1.SandboxServiceClient) {
		t.Helper()
		d, err := daemon.Start(limit(t), daemon.Options{Program: binary("sandgate"), Args: []string{"--provider", "kubernetes",
			"--kubernetes-image", image(), "--state-dir", t.TempDir(), "--config", config}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Stop() })
		conn, err := grpc.NewClient(d.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return d, sandboxv1.NewSandboxServiceClient(conn)
	}
	one, first := start()
	_, second := start()
	var made, refused atomic.Int32
	create := func(server sandboxv1.SandboxServiceClient, id string) {
		_, err := server.CreateSandbox(limit(t), &sandboxv1.CreateSandboxRequest{SandboxId: id})
		if err == nil {
			made.Add(1)
			return
		}
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetReason() == "QUOTA_EXCEEDED" {
				refused.Add(1)
				return
			}
		}
		t.Errorf("create %s: %v", id, err)
	}
	want := func(what string, sandboxes, refusals int32) {
		t.Helper()
		if made.Load() != sandboxes || refused.Load() != refusals {
			t.Errorf("%s: %d created and %d refused, want %d and %d", what, made.Load(), refused.Load(), sandboxes, refusals)
		}
		list, err := second.ListSandboxes(limit(t), &sandboxv1.ListSandboxesRequest{})
		if err != nil || len(list.GetSandboxes()) != most {
			t.Errorf("%s: %d sandboxes, %v", what, len(list.GetSandboxes()), err)
		}
	}
	var work sync.WaitGroup
	for i := range calls {
		server := first
		if i%2 > 0 {
			server = second
		}
		work.Go(func() { create(server, fmt.Sprint("s", i)) })
	}
	work.Wait()
	want("at the same time", most, calls-most)

	one.Kill()
	_, third := start()
	create(third, "after")
	create(second, "after")
	want("after a kill", most, calls-most+2)
	list, err := third.ListSandboxes(limit(t), &sandboxv1.ListSandboxesRequest{})
	if err != nil || len(list.GetSandboxes()) == 0 {
		t.Fatal(list, err)
	}
	if _, err := third.DeleteSandbox(limit(t), &sandboxv1.DeleteSandboxRequest{SandboxId: list.GetSandboxes()[0].GetSandboxId()}); err != nil {
		t.Fatal(err)
	}
	create(third, "again")
	create(third, "beyond")
	want("after a deletion", most+1, calls-most+3)
}
