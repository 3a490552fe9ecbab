package sandgate

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestLifecycle(t *testing.T) {
	client, ctx := connect(t, &fake.Server{Token: "secret"}, WithToken("secret")), within(t)
	sandbox, created, err := client.Create(ctx, CreateRequest{ID: "a", Labels: map[string]string{"team": "x"}})
	if err != nil || !created || sandbox.ID() != "a" || sandbox.Incarnation != "first" {
		t.Fatalf("got %+v, %t, %v", sandbox, created, err)
	}
	if _, created, err = client.Create(ctx, CreateRequest{ID: "a", Labels: map[string]string{"team": "x"}}); err != nil || created {
		t.Errorf("again: %t, %v", created, err)
	}
	if _, _, err = client.Create(ctx, CreateRequest{ID: "a", Template: "other"}); !errors.Is(err, ErrSandboxExists) {
		t.Errorf("with another spec: %v", err)
	}
	create(t, client, "b")
	var ids []string
	for info, err := range client.List(ctx, ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.GetSandboxId())
	}
	if diff := cmp.Diff([]string{"a", "b"}, ids); diff != "" {
		t.Error(diff)
	}
	if err := sandbox.Delete(ctx); err != nil {
		t.Error(err)
	}
	if err := sandbox.Delete(ctx); err != nil {
		t.Errorf("again: %v", err)
	}
	if gone, err := client.Delete(ctx, "a"); gone || err != nil {
		t.Errorf("deleted %t, %v", gone, err)
	}
	if _, err := client.Get(ctx, "a"); !errors.Is(err, ErrSandboxNotFound) {
		t.Errorf("get: %v", err)
	}
}

func TestWrongToken(t *testing.T) {
	client := connect(t, &fake.Server{Token: "secret"}, WithToken("other"))
	_, err := client.ServerInfo(within(t))
	if !errors.Is(err, ErrAuthentication) || strings.Contains(err.Error(), "other") {
		t.Errorf("error %v", err)
	}
	_, err = client.Sandbox("x").Execute(within(t), ExecuteRequest{Shell: "true"})
	if !errors.Is(err, ErrAuthentication) {
		t.Errorf("stream: error %v", err)
	}
}

func TestReplacedSandbox(t *testing.T) {
	server := &fake.Server{}
	client := connect(t, server)
	sandbox := create(t, client, "a")
	server.Replace("a")
	if _, err := sandbox.Execute(within(t), ExecuteRequest{Shell: "true"}); !errors.Is(err, ErrSandboxReplaced) {
		t.Errorf("error %v", err)
	}
	if _, err := client.Sandbox("a").Execute(within(t), ExecuteRequest{Shell: "true"}); err != nil {
		t.Errorf("without an incarnation: %v", err)
	}
	if err := sandbox.Delete(within(t)); !errors.Is(err, ErrSandboxReplaced) {
		t.Errorf("delete: %v", err)
	}
}

// Only what has the same effect when it is made twice is made twice.
func TestOnlyIdempotentCallsAreRepeated(t *testing.T) {
	var failures atomic.Int32
	server := &fake.Server{Fail: func(string) error {
		if failures.Add(-1) >= 0 {
			return fake.Error(codes.Unavailable, "AGENT_UNAVAILABLE", "not now")
		}
		return nil
	}}
	client, ctx := connect(t, server), within(t)
	sandbox := create(t, client, "a")
	write := func(r WriteRequest) func() error {
		return func() error {
			_, err := sandbox.Write(ctx, "/x", nil, r)
			if errors.Is(err, ErrUnsupported) { // by the fake, which has received the call
				return nil
			}
			return err
		}
	}
	tests := []struct {
		name    string
		call    func() error
		repeats bool
	}{
		{"get", func() error { _, err := client.Get(ctx, "a"); return err }, true},
		{"create with an id", func() error { _, _, err := client.Create(ctx, CreateRequest{ID: "a"}); return err }, true},
		{"create without an id", func() error { _, _, err := client.Create(ctx, CreateRequest{}); return err }, true},
		{"suspend", func() error { _, err := client.Suspend(ctx, "a"); return err }, true},
		{"resume", func() error { _, err := sandbox.Resume(ctx); return err }, true},
		{"execute", func() error { _, err := sandbox.Execute(ctx, ExecuteRequest{Shell: "true"}); return err }, true},
		{"download", func() error { _, err := sandbox.Download(ctx, "/none"); return err }, true},
		{"write", write(WriteRequest{}), true},
		{"write a new file", write(WriteRequest{CreateOnly: true}), false},
		{"signal", func() error { _, err := sandbox.Signal(ctx, "x", "SIGTERM", Tree); return err }, false},
		{"delete", func() error { _, err := client.Delete(ctx, "a"); return err }, true},
	}
	for _, tt := range tests {
		failures.Store(2)
		err := tt.call()
		if tt.repeats && err != nil || !tt.repeats && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: error %v", tt.name, err)
		}
	}
}

// No other caller has an id that the client generated, so a sandbox that a retry finds
// was created by the call that lost its reply.
func TestCreateWhoseReplyIsLost(t *testing.T) {
	server := &fake.Server{}
	var lost sync.Once
	server.Late = func(method string) {
		if strings.HasSuffix(method, "/CreateSandbox") {
			lost.Do(server.Cut)
		}
	}
	client, ctx := connect(t, server), within(t)
	if _, err := client.ServerInfo(ctx); err != nil {
		t.Fatal(err)
	}
	sandbox, created, err := client.Create(ctx, CreateRequest{})
	if err != nil || !created || server.Calls("CreateSandbox") != 2 {
		t.Fatalf("created %t, %v, after %d calls", created, err, server.Calls("CreateSandbox"))
	}
	for info, err := range client.List(ctx, ListRequest{}) {
		if err != nil || info.GetSandboxId() != sandbox.ID() {
			t.Errorf("beside %s there is %v, %v", sandbox.ID(), info, err)
		}
	}
}

// A handle follows its sandbox through a resume, and no other handle does.
func TestSuspendAndResume(t *testing.T) {
	client, ctx := connect(t, &fake.Server{}), within(t)
	sandbox := create(t, client, "a")
	other, err := client.Get(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if info, err := sandbox.Suspend(ctx); err != nil || info.GetState() != Suspended {
			t.Fatalf("suspend: %v, %v", info, err)
		}
	}
	if _, err := sandbox.Execute(ctx, ExecuteRequest{Shell: "true"}); !errors.Is(err, ErrSandboxNotActive) {
		t.Errorf("while it is suspended: %v", err)
	}
	info, err := sandbox.Resume(ctx)
	if err != nil || info.GetState() != Active || info.GetIncarnation() == other.Incarnation || sandbox.Incarnation != info.GetIncarnation() {
		t.Fatalf("resume: %v, %v, the handle expects %q", info, err, sandbox.Incarnation)
	}
	if _, err := sandbox.Execute(ctx, ExecuteRequest{Shell: "true"}); err != nil {
		t.Errorf("resumed: %v", err)
	}
	if _, err := other.Execute(ctx, ExecuteRequest{Shell: "true"}); !errors.Is(err, ErrSandboxReplaced) {
		t.Errorf("through another handle: %v", err)
	}
	anyOf := client.Sandbox("a")
	if _, err := anyOf.Resume(ctx); err != nil || anyOf.Incarnation != "" {
		t.Errorf("a handle of any incarnation: %v, it expects %q", err, anyOf.Incarnation)
	}
	if _, err := client.Suspend(ctx, "none"); !errors.Is(err, ErrSandboxNotFound) {
		t.Errorf("nothing: %v", err)
	}
}

func TestNoSuspend(t *testing.T) {
	client, ctx := connect(t, &fake.Server{CannotSuspend: true}), within(t)
	sandbox := create(t, client, "a")
	for name, call := range map[string]func(context.Context) (*Info, error){"suspend": sandbox.Suspend, "resume": sandbox.Resume} {
		info, err := call(ctx)
		if info != nil || !errors.Is(err, ErrUnsupported) || !errors.Is(err, Reason("FEATURE_UNSUPPORTED")) || !strings.Contains(err.Error(), "cannot suspend") {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if sandbox.Incarnation != "first" {
		t.Errorf("the handle expects %q", sandbox.Incarnation)
	}
}

// A wrong address is reported at once, not after a minute.
func TestWrongAddressIsReportedAtOnce(t *testing.T) {
	client, err := NewClient(t.Context(), WithAddress("unix:///nonexistent/s.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	_, err = client.Sandbox("x").Execute(within(t), ExecuteRequest{Shell: "true"})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "unix:///nonexistent/s.sock cannot be reached") {
		t.Errorf("error %v", err)
	}
}
