package e2e

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestSuite holds sandboxes to the cases of providertest through the real gRPC
// stack: client, server, each way in, agent.
func TestSuite(t *testing.T) {
	need(t)
	for name, args := range map[string][]string{
		"socket":          {"--local-way", "socket"},
		"exec":            {"--local-way", "exec"},
		"exec restricted": {"--local-way", "exec", "--local-profile", "restricted"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "sandgate-suite-")
			if err != nil {
				t.Fatal(err)
			}
			s, err := serve(dir, args...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			})
			conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			})
			client := sandboxv1.NewSandboxServiceClient(conn)
			providertest.RunSandbox(t, providertest.SandboxHarness{
				New: func(t *testing.T, r providers.Resources) providertest.Sandbox {
					t.Helper()
					return suiteSandbox(t, client, r)
				},
			})
		})
	}
}

func suiteSandbox(t *testing.T, client sandboxv1.SandboxServiceClient, r providers.Resources) providertest.Sandbox {
	t.Helper()
	made, err := client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
		Labels: map[string]string{"case": strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])},
		Spec: &sandboxv1.SandboxSpec{Resources: &sandboxv1.Resources{
			MemoryBytes: r.MemoryBytes, CpuMillis: r.CPUMillis, MaxProcesses: r.MaxProcesses, DiskBytes: r.DiskBytes,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return providertest.Sandbox{Client: client, ID: made.GetSandbox().GetSandboxId()}
}
