package sandgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// retries is clients/retries.json, which the tests of all clients read.
type retries struct {
	// Methods are idempotent, a stream that can be resumed, or called once.
	Methods map[string]string
	Errors  []struct {
		Code, Reason string
		RetryInfo    bool `json:"retry_info"`
		Error        string
		Retried      []string // the kinds of method that are retried
	}
}

func readRetries(t *testing.T) (table retries) {
	t.Helper()
	raw, err := os.ReadFile("../retries.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	return table
}

// failures are the errors of the next calls of a server.
type failures struct {
	mu    sync.Mutex
	next  []error
	calls int
}

func (f *failures) set(errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.calls = errs, 0
}

func (f *failures) fail(string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if len(f.next) == 0 {
		return nil
	}
	err := f.next[0]
	f.next = f.next[1:]
	return err
}

func (f *failures) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// permanent is not retried.
var permanent = fake.Error(codes.NotFound, "SANDBOX_NOT_FOUND", "permanent")

// calls calls each method of the service.
func calls(client *Client) map[string]func(context.Context) error {
	s := client.Sandbox("a")
	return map[string]func(context.Context) error{
		"GetServerInfo": func(ctx context.Context) error { _, err := client.ServerInfo(ctx); return err },
		"CreateSandbox": func(ctx context.Context) error { _, _, err := client.Create(ctx, CreateRequest{}); return err },
		"GetSandbox":    func(ctx context.Context) error { _, err := client.Get(ctx, "a"); return err },
		"ListSandboxes": func(ctx context.Context) error { _, err := client.ListPage(ctx, ListRequest{}); return err },
		"UpdateSandbox": func(ctx context.Context) error {
			_, err := client.Update(ctx, "a", UpdateRequest{Renew: true})
			return err
		},
		"DeleteSandbox":    func(ctx context.Context) error { _, err := client.Delete(ctx, "a"); return err },
		"CleanupSandboxes": func(ctx context.Context) error { _, err := client.Cleanup(ctx, CleanupRequest{}); return err },
		"SuspendSandbox":   func(ctx context.Context) error { _, err := client.Suspend(ctx, "a"); return err },
		"ResumeSandbox":    func(ctx context.Context) error { _, err := client.Resume(ctx, "a"); return err },
		"GetPoolStatus":    func(ctx context.Context) error { _, err := client.PoolStatus(ctx, ""); return err },
		"Execute":          func(ctx context.Context) error { _, err := s.Execute(ctx, ExecuteRequest{Shell: "true"}); return err },
		"Attach":           func(ctx context.Context) error { _, err := s.Attach(ctx, "x", 0, LeaderExit); return err },
		"WriteStdin": func(ctx context.Context) error {
			_, err := client.stub.WriteStdin(ctx, &sandboxv1.WriteStdinRequest{SandboxId: "a"})
			return err
		},
		"SignalProcess": func(ctx context.Context) error { _, err := s.Signal(ctx, "x", "SIGTERM", Tree); return err },
		"ResizeTerminal": func(ctx context.Context) error {
			_, err := client.stub.ResizeTerminal(ctx, &sandboxv1.ResizeTerminalRequest{SandboxId: "a"})
			return err
		},
		"ListProcesses": func(ctx context.Context) error { _, err := s.Processes(ctx, false); return err },
		"Upload": func(ctx context.Context) error {
			_, err := s.UploadFile(ctx, File{Path: "/x", Content: bytes.NewReader(nil)})
			return err
		},
		"GetUpload": func(ctx context.Context) error {
			_, err := client.stub.GetUpload(ctx, &sandboxv1.GetUploadRequest{SandboxId: "a"})
			return err
		},
		"Download": func(ctx context.Context) error { _, err := s.DownloadFile(ctx, "/x", io.Discard, nil); return err },
		"StatFile": func(ctx context.Context) error { _, err := s.Stat(ctx, "/x"); return err },
		"ListDirectory": func(ctx context.Context) error {
			for _, err := range s.List(ctx, "/") {
				return err
			}
			return nil
		},
		"MakeDirectory": func(ctx context.Context) error { _, err := s.MakeDirectory(ctx, "/d"); return err },
		"MoveFile":      func(ctx context.Context) error { return s.Move(ctx, "/x", "/y", false) },
		"RemoveFile":    func(ctx context.Context) error { return s.Remove(ctx, "/x", false) },
		"ReadLines":     func(ctx context.Context) error { _, err := s.Read(ctx, "/x", ReadRequest{}); return err },
		"WriteFile":     func(ctx context.Context) error { _, err := s.Write(ctx, "/x", nil, WriteRequest{}); return err },
		"EditFile":      func(ctx context.Context) error { _, err := s.Edit(ctx, "/x", "a", "b", false); return err },
		"SearchFiles":   func(ctx context.Context) error { _, err := s.Search(ctx, "/", "x", SearchRequest{}); return err },
		"GlobFiles":     func(ctx context.Context) error { _, err := s.Glob(ctx, "/", "*", GlobRequest{}); return err },
		"Forward":       func(ctx context.Context) error { _, err := s.Connect(ctx, 80); return err },
		"CreateSandboxUrl": func(ctx context.Context) error {
			_, err := s.GetURL(ctx, URLRequest{Port: 80})
			return err
		},
		"WatchSandboxes": func(ctx context.Context) error {
			for _, err := range client.Watch(ctx, WatchRequest{}) {
				return err
			}
			return nil
		},
	}
}

func TestRetriedMethods(t *testing.T) {
	table := readRetries(t)
	methods := sandboxv1.File_sandbox_v1_sandbox_service_proto.Services().ByName("SandboxService").Methods()
	for i := range methods.Len() {
		if name := string(methods.Get(i).Name()); table.Methods[name] == "" {
			t.Errorf("clients/retries.json has no method %s", name)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var f failures
		client := connect(t, &fake.Server{Fail: f.fail})
		if _, err := client.ServerInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
		made := calls(client)
		for method, kind := range table.Methods {
			f.set(fake.Error(codes.Unavailable, "SERVER_SHUTTING_DOWN", "restarting"), permanent, permanent)
			want, wantCalls := ErrSandboxNotFound, 2
			if kind == "once" {
				want, wantCalls = ErrUnavailable, 1
			}
			if err := made[method](t.Context()); !errors.Is(err, want) || f.count() != wantCalls {
				t.Errorf("%s: error %v after %d calls, want %v after %d", method, err, f.count(), want, wantCalls)
			}
		}
	})
}

func TestRetriedErrors(t *testing.T) {
	table := readRetries(t)
	synctest.Test(t, func(t *testing.T) {
		var f failures
		client := connect(t, &fake.Server{Fail: f.fail})
		if _, err := client.ServerInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
		made := calls(client)
		for _, row := range table.Errors {
			for kind, method := range map[string]string{"idempotent": "GetSandbox", "once": "EditFile", "stream": "Attach"} {
				f.set(statusOf(row.Code, row.Reason, row.RetryInfo), permanent)
				begun := time.Now()
				err := made[method](t.Context())
				waited := time.Since(begun)
				name := strings.Join([]string{row.Code, row.Reason, kind}, " ")
				retried := slices.Contains(row.Retried, kind)
				e := (*Error)(nil)
				switch {
				case !errors.As(err, &e):
					t.Errorf("%s: error %v", name, err)
				case retried && (!errors.Is(err, ErrSandboxNotFound) || f.count() != 2):
					t.Errorf("%s: error %v after %d calls, want a retry", name, err, f.count())
				case !retried && (e.Name() != row.Error || f.count() != 1):
					t.Errorf("%s: %s after %d calls, want %s after 1", name, e.Name(), f.count(), row.Error)
				case retried && row.RetryInfo && waited < time.Second:
					t.Errorf("%s: retried after %v, before the time of RetryInfo", name, waited)
				case !retried && row.RetryInfo && e.RetryAfter != time.Second:
					t.Errorf("%s: RetryAfter is %v", name, e.RetryAfter)
				}
			}
		}
	})
}

// statusOf returns the error of a server, or of a proxy if there is no reason.
func statusOf(code, reason string, retryInfo bool) error {
	var details []proto.Message
	if reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: reason, Domain: "sandgate"})
	}
	if retryInfo {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	}
	st := status.New(grpcCodes[code], "failed")
	for _, detail := range details {
		st, _ = st.WithDetails(protoadapt.MessageV1Of(detail))
	}
	return st.Err()
}
