//go:build linux

package realagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/quota"
	"github.com/sandgate/sandgate/test/testserver"
)

// faulty is a provider with one fault at one step for one operation: before or
// after what a method does.
type faulty struct {
	*fake.Provider
	mu      sync.Mutex
	step    string // such as "dial before"
	kind    string // fail, hang, panic
	spare   string // the neighbour's name
	reached chan struct{}
}

var errInjected = errors.New("injected")

func (f *faulty) arm(step, kind string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step, f.kind, f.reached = step, kind, make(chan struct{})
	return f.reached
}

func (f *faulty) disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step = ""
}

func (f *faulty) at(ctx context.Context, step, name string) error {
	f.mu.Lock()
	if f.step != step || name == f.spare {
		f.mu.Unlock()
		return nil
	}
	kind, reached := f.kind, f.reached
	if reached != nil {
		close(reached)
		f.reached = nil
	}
	f.mu.Unlock()
	switch kind {
	case "panic":
		panic(errInjected)
	case "hang":
		<-ctx.Done()
		return context.Cause(ctx)
	default:
		return errInjected
	}
}

// Create returns a connection that is broken where Dial is to fail: the server
// then dials.
func (f *faulty) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if err := f.at(ctx, "create before", name); err != nil {
		return providers.Info{}, nil, err
	}
	info, conn, err := f.Provider.Create(ctx, name, spec)
	if err != nil {
		return info, nil, err
	}
	usable := false
	defer func() {
		if !usable && conn != nil {
			_ = conn.Close()
		}
	}()
	if err := f.at(ctx, "create after", name); err != nil {
		return info, nil, err
	}
	usable = !f.dialFails()
	return info, conn, nil
}

func (f *faulty) dialFails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.HasPrefix(f.step, "dial")
}

func (f *faulty) Get(ctx context.Context, name string) (providers.Info, error) {
	if err := f.at(ctx, "get before", name); err != nil {
		return providers.Info{}, err
	}
	return f.Provider.Get(ctx, name)
}

func (f *faulty) Delete(ctx context.Context, name string, c providers.Condition) error {
	if err := f.at(ctx, "delete before", name); err != nil {
		return err
	}
	err := f.Provider.Delete(ctx, name, c)
	if err == nil {
		err = f.at(ctx, "delete after", name)
	}
	return err
}

func (f *faulty) Dial(ctx context.Context, name string) (net.Conn, error) {
	if err := f.at(ctx, "dial before", name); err != nil {
		return nil, err
	}
	conn, err := f.Provider.Dial(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := f.at(ctx, "dial after", name); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// faultyServer serves sandboxes of a faulty provider, with room for two, and for
// one creation at a time: whatever a fault leaves behind is in the way.
func faultyServer(t *testing.T) (*faulty, sandboxv1.SandboxServiceClient) {
	t.Helper()
	machine, dir := testserver.Machine(t)
	f := &faulty{Provider: machine.Open()}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	address, _ := testserver.Serve(t, dir, server.Config{
		Provider: f, Logger: slog.New(slog.DiscardHandler),
		Templates: []policy.Template{{Name: "default"}, {Name: "pooled", Pool: 1}},
		Limits:    server.Limits{MaxCreations: 1},
		Quotas:    quota.Config{MaxSandboxes: 2},
	})
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return f, sandboxv1.NewSandboxServiceClient(conn)
}

// TestFaultsLeaveNothingStuck fails, hangs or panics at each step of a creation,
// a claim from a pool and a deletion. The call ends, the neighbour works on
// meanwhile, and afterwards everything can be done again.
func TestFaultsLeaveNothingStuck(t *testing.T) {
	for operation, steps := range map[string][]string{
		"create": {"create before", "create after", "dial before", "dial after"},
		"claim":  {"create before", "create after", "dial before", "dial after"},
		"delete": {"get before", "delete before", "delete after"},
	} {
		for _, step := range steps {
			for _, kind := range []string{"fail", "hang", "panic"} {
				t.Run(fmt.Sprintf("%s/%s/%s", operation, step, kind), func(t *testing.T) {
					testFault(t, operation, step, kind)
				})
			}
		}
	}
}

func testFault(t *testing.T, operation, step, kind string) {
	f, client := faultyServer(t)
	template := "default"
	if operation == "claim" {
		template = "pooled"
	}
	create := func(ctx context.Context) error {
		_, err := client.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: "x", Template: template})
		return err
	}
	remove := func(ctx context.Context) error {
		_, err := client.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{SandboxId: "x", AllowMissing: true})
		return err
	}
	works := func(id string) {
		t.Helper()
		_, err := client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: id, Path: "/"})
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	page, err := f.List(t.Context(), providers.Query{Limit: 10})
	if err != nil || len(page.Sandboxes) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	f.spare = page.Sandboxes[0].Name
	call := create
	if operation == "delete" {
		call = remove
		if err := create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	reached := f.arm(step, kind)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	<-reached
	works("a")
	if kind == "hang" {
		giveUp()
	}
	if err := <-ended; err == nil || kind == "hang" && status.Code(err) != codes.Canceled {
		t.Errorf("the call ended with %v", err)
	}
	f.disarm()

	// A caller that went away hears nothing of what the server still undoes.
	for range 2 {
		if err := create(t.Context()); err != nil {
			t.Fatalf("create again: %v", err)
		}
		works("x")
		works("a")
		if err := remove(t.Context()); err != nil {
			t.Fatalf("delete again: %v", err)
		}
	}
	// There is room for one more, whatever its name.
	if _, err := client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "y"}); err != nil {
		t.Errorf("create another: %v", err)
	}
	if _, err := client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "y"}); err != nil {
		t.Errorf("delete another: %v", err)
	}
	page, err = f.List(t.Context(), providers.Query{Limit: 10})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Name != f.spare {
		t.Errorf("what is left: %+v, %v", page.Sandboxes, err)
	}
}
