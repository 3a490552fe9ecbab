package server

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/wire"
)

func TestCreationIsAuditedAsRequestedAndAsGranted(t *testing.T) {
	h, log := audited(t, nil)
	_, err := h.client.CreateSandbox(withRequestID(t.Context(), "r"), &sandboxv1.CreateSandboxRequest{
		SandboxId: "a", Spec: &sandboxv1.SandboxSpec{Image: "img:1", Resources: &sandboxv1.Resources{MemoryBytes: 1 << 20}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := log.await(t, "r", 2)
	wantRecord(t, got[0], `{"phase": "started", "tenant": "default", "operation": "CreateSandbox", "sandbox_id": "a",
		"image": "img:1", "memory_bytes": 1048576}`)
	for key, want := range map[string]any{"phase": "ended", "code": "OK", "template": "default", "image": "img:1",
		"network": "NONE", "memory_bytes": float64(1 << 20), "sandbox_id": "a"} {
		if got[1][key] != want {
			t.Errorf("%s is %v, want %v", key, got[1][key], want)
		}
	}
}

// A running command is in the log before it ends, and its end has the outcome.
func TestRunningCommandIsAuditedBeforeItEnds(t *testing.T) {
	running, end := make(chan struct{}), make(chan struct{})
	h, log := audited(t, nil)
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		if err := out.started(0); err != nil {
			return err
		}
		close(running)
		<-end
		return out.exited(0, 0)
	}
	h.create("a")
	stream, err := h.client.Execute(withRequestID(t.Context(), "r"), &sandboxv1.ExecuteRequest{SandboxId: "a", ExecId: "x",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	<-running
	const hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
	wantRecord(t, log.records(t, "r")[0], `{"phase": "started", "tenant": "default", "operation": "Execute", "sandbox_id": "a",
		"exec_id": "x", "program": "/bin/sh", "command_sha256": "`+hash+`"}`)
	close(end)
	for err == nil {
		_, err = stream.Recv()
	}
	wantRecord(t, log.await(t, "r", 2)[1], `{"phase": "ended", "tenant": "default", "operation": "Execute", "sandbox_id": "a",
		"exec_id": "x", "program": "/bin/sh", "command_sha256": "`+hash+`", "code": "OK", "exit_reason": "EXITED",
		"exit_code": 0, "bytes": 0}`)
	if strings.Contains(log.String(), "secret") {
		t.Error("the command's text is in the log")
	}
}

func TestAuditKeepsCommandsOnRequest(t *testing.T) {
	h, log := audited(t, func(c *Config) { c.AuditCommandText = true })
	h.create("a")
	for id, req := range map[string]*sandboxv1.ExecuteRequest{
		"shell": {SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "echo $HOME"}},
		"argv":  {SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: []string{"ls", "-l", "a b"}}}},
		"long":  {SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: strings.Repeat("x", 1<<20)}},
	} {
		stream, err := h.client.Execute(withRequestID(t.Context(), id), req)
		for err == nil {
			_, err = stream.Recv()
		}
	}
	if got := log.await(t, "shell", 2)[0]["command"]; got != "echo $HOME" {
		t.Errorf("shell: %v", got)
	}
	if got := log.await(t, "argv", 2)[0]["command"]; got != `["ls","-l","a b"]` {
		t.Errorf("argv: %v", got)
	}
	if got, _ := log.await(t, "long", 2)[0]["command"].(string); len(got) != (8 << 10) {
		t.Errorf("long: %d bytes", len(got))
	}
}

// Each object of a call with several has records of its own, with its outcome.
func TestEachObjectOfACallIsAudited(t *testing.T) {
	h, log := audited(t, nil)
	h.provider.script.upload = func(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
		for {
			if _, err := in.Recv(); err != nil {
				break
			}
		}
		return in.SendAndClose(&sandboxv1.UploadResponse{Results: []*sandboxv1.UploadResult{
			{Path: "/one"}, {Error: &sandboxv1.FileError{Reason: sandboxv1.ErrorReason_ERROR_REASON_DISK_FULL}},
			{Error: &sandboxv1.FileError{Reason: 9999}},
		}})
	}
	h.create("a")
	h.create("b")
	stream, err := h.client.Upload(withRequestID(t.Context(), "up"))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{"/one", "/two", "/three"} {
		header := &sandboxv1.UploadHeader{Path: path}
		if i == 0 {
			header.SandboxId = "a"
		}
		if err := stream.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: header}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	type object struct{ phase, path, code, reason any }
	var got []object
	for _, r := range log.await(t, "up", 7) {
		if r["sandbox_id"] != "a" {
			t.Errorf("record %v", r)
		}
		got = append(got, object{r["phase"], r["path"], r["code"], r["reason"]})
	}
	want := []object{
		{"started", "/one", nil, nil}, {"started", "/two", nil, nil}, {"started", "/three", nil, nil},
		{"ended", nil, "OK", nil}, {"ended", "/one", "OK", nil}, {"ended", "/two", "ResourceExhausted", "DISK_FULL"},
		{"ended", "/three", "Unknown", "UNKNOWN"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("upload: %v, want %v", got, want)
	}

	if _, err := h.client.CleanupSandboxes(withRequestID(t.Context(), "clean"),
		&sandboxv1.CleanupSandboxesRequest{MaxIdle: wire.Duration(time.Nanosecond)}); err != nil {
		t.Fatal(err)
	}
	var deleted []string
	for _, r := range log.await(t, "clean", 4) {
		if id, ok := r["sandbox_id"].(string); ok {
			deleted = append(deleted, id)
		}
	}
	if slices.Sort(deleted); !slices.Equal(deleted, []string{"a", "b"}) {
		t.Errorf("cleanup: %v", deleted)
	}
}

// Every call leaves records, also one that is refused, and each text of a caller
// in it is bounded.
func TestEveryCallIsAuditedWithBoundedTexts(t *testing.T) {
	h, log := audited(t, nil)
	long := strings.Repeat("p", 1<<20)
	methods := sandboxv1.File_sandbox_v1_sandbox_service_proto.Services().ByName("SandboxService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		req := dynamicpb.NewMessage(m.Input())
		for _, field := range []protoreflect.Name{"sandbox_id", "exec_id", "path", "source", "destination", "template", "cursor"} {
			if fd := m.Input().Fields().ByName(field); fd != nil {
				req.Set(fd, protoreflect.ValueOfString(long))
			}
		}
		ctx := withRequestID(t.Context(), string(m.Name()))
		stream, err := h.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			err = stream.RecvMsg(dynamicpb.NewMessage(m.Output()))
		}
		if m.IsStreamingClient() {
			// No header has come, so nothing began.
			if r := log.await(t, string(m.Name()), 1)[0]; r["phase"] != "refused" {
				t.Errorf("%s: %v", name, r)
			}
			continue
		}
		r := log.await(t, string(m.Name()), 2)
		if r[0]["phase"] != "started" || r[1]["phase"] != "ended" || r[1]["operation"] != string(m.Name()) {
			t.Errorf("%s: %v", name, r)
		}
	}
	for line := range strings.Lines(log.String()) {
		if len(line) > 6<<10 {
			t.Errorf("a record of %d bytes: %.200s", len(line), line)
		}
	}
}

func TestAuditOfAMessageThatCannotBeDecoded(t *testing.T) {
	h, log := audited(t, nil)
	err := h.conn.Invoke(withRequestID(t.Context(), "r"), sandboxv1.SandboxService_GetSandbox_FullMethodName,
		[]byte{0xff, 0xff}, new([]byte), grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument {
		t.Fatal(err)
	}
	wantRecord(t, log.await(t, "r", 1)[0], `{"phase": "refused", "tenant": "default", "operation": "GetSandbox",
		"code": "InvalidArgument", "reason": "REQUEST_INVALID", "bytes": 0}`)
}

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (rawCodec) Name() string                    { return "proto" }

// Without credentials there is no tenant, and refusals are recorded at a bounded
// rate: their count is not lost.
func TestRefusedCredentialsAreBounded(t *testing.T) {
	written, log := &lines{}, &lines{}
	h := newHarness(t, func(c *Config) {
		c.Audit, c.Logger = audit.NewLog(written), slog.New(slog.NewTextHandler(log, nil))
		c.Authenticator = authn.Any{}
	})
	const calls = 10_000
	begun := time.Now()
	var refused atomic.Int64
	var work sync.WaitGroup
	for range 50 {
		work.Go(func() {
			for range calls / 50 {
				_, err := h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
				if status.Code(err) == codes.Unauthenticated {
					refused.Add(1)
				}
				// Else the server has closed the connection on so many such calls.
			}
		})
	}
	work.Wait()
	records, suppressed := 0, 0.0
	for line := range strings.Lines(written.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		records++
		if r["tenant"] != "" || r["phase"] != "refused" || r["principal"] != nil {
			t.Fatalf("record %v", r)
		}
		if n, ok := r["suppressed"].(float64); ok {
			suppressed += n
		}
	}
	total := h.metric("sandgate_audit_suppressed_total")
	if got := int64(records) + int64(total); suppressed > total || got < refused.Load() || got > calls || got < calls/2 {
		t.Errorf("%d records, %v suppressed, of which they count %v: %d in all, but %d calls were refused", records, total, suppressed, got, refused.Load())
	}
	// A burst of 100, then 10 a second.
	most := 100 + 10*(int(time.Since(begun).Seconds())+1)
	if n := len(written.String()) + len(log.String()); records > most || n > most*1024 {
		t.Errorf("%d records of at most %d, %d bytes", records, most, n)
	}
	if !strings.Contains(log.String(), `tenant=""`) || !strings.Contains(log.String(), "peer=") {
		t.Errorf("the log lacks tenant or peer: %.300s", log.String())
	}
}

// What can't be written is logged once, leaves a gap in the numbers, and no torn
// line; the operator may have calls refused meanwhile.
func TestAuditLogThatCannotBeWritten(t *testing.T) {
	for _, required := range []bool{false, true} {
		errs := &lines{}
		h, log := audited(t, func(c *Config) {
			c.AuditRequired, c.Logger = required, slog.New(slog.NewTextHandler(errs, nil))
		})
		call := func() error {
			_, err := h.client.ListSandboxes(withRequestID(t.Context(), "r"), &sandboxv1.ListSandboxesRequest{})
			return err
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		log.await(t, "r", 2)
		log.setFail(errors.New("no space left on device"))
		for range 3 {
			if err := call(); (err != nil) != required {
				t.Fatalf("required %v: %v", required, err)
			}
		}
		for h.metric("sandgate_audit_failures_total") < 6 {
			time.Sleep(time.Millisecond)
		}
		log.setFail(nil)
		if err := call(); err != nil {
			t.Fatal(err)
		}
		var seqs []float64
		for deadline := time.Now().Add(20 * time.Second); len(seqs) < 4 && time.Now().Before(deadline); {
			seqs = nil
			for line := range strings.Lines(log.String()) {
				var r map[string]any
				if json.Unmarshal([]byte(line), &r) == nil {
					seqs = append(seqs, r["seq"].(float64))
				}
			}
		}
		if !slices.Equal(seqs, []float64{1, 2, 9, 10}) {
			t.Errorf("sequence %v", seqs)
		}
		if n := strings.Count(errs.String(), "cannot be written"); n != 1 || !strings.Contains(errs.String(), "lost_records=6") {
			t.Errorf("%d lines in the log: %s", n, errs.String())
		}
	}
}
