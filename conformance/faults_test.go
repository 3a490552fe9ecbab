package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// fault breaks a contract in the middle of a call. nil fields break nothing.
type fault struct {
	// event replaces an event of Execute or Attach.
	event func(*sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse
	// request changes a request before the server gets it.
	request func(method string, m proto.Message)
	// reply changes a reply that is none of the events.
	reply func(method string, m proto.Message)
	// failed changes how a call fails.
	failed func(error) error
}

// The cases fail against a server that breaks the contracts.
func TestCasesFailAgainstAServerThatBreaksContracts(t *testing.T) {
	each := func(change func(*sandboxv1.ExecuteResponse)) func(*sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
		return func(m *sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
			change(m)
			return []*sandboxv1.ExecuteResponse{m}
		}
	}
	exited := func(change func(*sandboxv1.Exited)) func(*sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
		return each(func(m *sandboxv1.ExecuteResponse) {
			if m.GetExited() != nil {
				change(m.GetExited())
			}
		})
	}
	shifted := int64(0) // of the one stream of a case that uses it
	for _, c := range []struct {
		name  string
		fault fault
		finds []string
	}{
		{"a byte is dropped", fault{event: each(func(m *sandboxv1.ExecuteResponse) {
			if o := m.GetOutput(); len(o.GetData()) > 1 {
				o.Data = o.GetData()[1:]
			}
		})}, []string{"C06_output_is_bytes", "C06_every_byte", "C06_large_output", "C07_attach_positions", "C12_slow_reader_gets_all"}},
		{"a byte is dropped, and the positions hide it", fault{event: each(func(m *sandboxv1.ExecuteResponse) {
			switch o := m.GetOutput(); {
			case m.GetStarted() != nil:
				shifted = 0
			case len(o.GetData()) > 1:
				o.Position -= shifted
				o.Data = o.GetData()[1:]
				shifted++
			case o != nil:
				o.Position -= shifted
			case m.GetExited() != nil:
				m.GetExited().Position -= shifted
			}
		})}, []string{"C06_every_byte", "C06_large_output"}},
		{"a byte is changed", fault{event: each(func(m *sandboxv1.ExecuteResponse) {
			if o := m.GetOutput(); o != nil {
				o.GetData()[0] ^= 1
			}
		})}, []string{"C06_every_byte", "C06_large_output"}},
		{"the streams are swapped", fault{event: each(func(m *sandboxv1.ExecuteResponse) {
			if o := m.GetOutput(); o != nil {
				o.Stream = 3 - o.GetStream()
			}
		})}, []string{"C06_streams_apart"}},
		{"the exit code is another", fault{event: exited(func(e *sandboxv1.Exited) {
			if e.ExitCode != nil {
				e.ExitCode = proto.Int32(e.GetExitCode() ^ 1)
			}
		})}, []string{"C05_exit_codes_and_signals", "C04_many_short_commands", "C07_same_id_after_the_end"}},
		{"a timeout looks like an exit", fault{event: exited(func(e *sandboxv1.Exited) {
			if e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
				e.Reason, e.ExitCode = sandboxv1.ExitReason_EXIT_REASON_EXITED, proto.Int32(124)
			}
		})}, []string{"C09_timeout", "C09_shortest_timeouts"}},
		{"a kill looks like a signal of its own", fault{event: exited(func(e *sandboxv1.Exited) {
			if e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_KILLED {
				e.Reason = sandboxv1.ExitReason_EXIT_REASON_SIGNALED
			}
		})}, []string{"C13_signals_by_name"}},
		{"truncation is not said", fault{event: exited(func(e *sandboxv1.Exited) { e.StdoutTruncated = false })}, []string{"C11_output_cap"}},
		{"an end comes twice", fault{event: func(m *sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
			if m.GetExited() != nil {
				return []*sandboxv1.ExecuteResponse{m, m}
			}
			return []*sandboxv1.ExecuteResponse{m}
		}}, []string{"C04_started_first_exited_last"}},
		{"no end comes", fault{event: func(m *sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
			if m.GetExited() != nil {
				return nil
			}
			return []*sandboxv1.ExecuteResponse{m}
		}}, []string{"C04_started_first_exited_last"}},
		{"no start comes", fault{event: func(m *sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
			if m.GetStarted() != nil {
				return nil
			}
			return []*sandboxv1.ExecuteResponse{m}
		}}, []string{"C04_started_first_exited_last"}},
		{"a gap is not said", fault{event: func(m *sandboxv1.ExecuteResponse) []*sandboxv1.ExecuteResponse {
			if m.GetGap() != nil {
				return nil
			}
			return []*sandboxv1.ExecuteResponse{m}
		}}, []string{"C07_gap_is_said"}},
		{"joining is not said", fault{event: each(func(m *sandboxv1.ExecuteResponse) {
			if m.GetStarted() != nil {
				m.GetStarted().Joined = false
			}
		})}, []string{"C07_same_id_joins_once"}},
		{"each start is another", fault{request: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.ExecuteRequest); ok {
				r.ExecId = ""
			}
		}}, []string{"C07_same_id_joins_once", "C07_same_id_other_request"}},
		{"a replay begins at 0", fault{request: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.AttachRequest); ok {
				r.Position = 0
			}
		}}, []string{"C07_attach_positions"}},
		{"a signal reaches the leader only", fault{request: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.SignalProcessRequest); ok {
				r.Scope = sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER
			}
		}}, []string{"C09_kill_kills_all_that_hide"}},
		{"the incarnation does not matter", fault{request: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.ExecuteRequest); ok {
				r.ExpectedIncarnation = ""
			}
		}}, []string{"C02_another_incarnation_is_refused"}},
		{"the grace is forgotten", fault{request: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.ExecuteRequest); ok {
				r.DisconnectGrace = nil
			}
		}}, []string{"C08_grace_of_a_lost_caller"}},
		{"the cap is forgotten", fault{request: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.ExecuteRequest); ok {
				r.MaxOutputBytes = nil
			}
		}}, []string{"C11_output_cap"}},
		{"a written offset is wrong", fault{reply: func(_ string, m proto.Message) {
			if r, ok := m.(*sandboxv1.WriteStdinResponse); ok {
				r.NextOffset++
			}
		}}, []string{"C13_stdin_offsets"}},
		{"errors have no reason", fault{failed: func(err error) error {
			return status.Error(status.Code(err), status.Convert(err).Message())
		}}, []string{"C27_errors_have_reasons", "C18_paths_that_cannot_be", "C07_same_id_other_request"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address, provider := realServer(t)
			s := open(t, Options{Address: meddle(t, address, c.fault), Seed: 1, Scale: 0.01, CaseTimeout: 30 * time.Second, CutInner: provider.cut})
			byName := map[string]Case{}
			for _, one := range Cases() {
				byName[one.Name] = one
			}
			for _, name := range c.finds {
				one, ok := byName[name]
				if !ok {
					t.Fatalf("there is no case %s", name)
				}
				if got := s.runOne(t.Context(), one); got.Outcome != Failed {
					t.Errorf("%s is %s: %v", name, got.Outcome, got.Reasons)
				} else {
					t.Logf("%s: %s", name, got.Reasons[0])
				}
			}
			// The fault may break this, too.
			_ = s.Close(context.WithoutCancel(t.Context()))
		})
	}
}

// blob is a message that is passed on undecoded.
type blob struct{ data []byte }

type blobCodec struct{}

func (blobCodec) Name() string { return "proto" }

func (blobCodec) Marshal(v any) ([]byte, error) { return v.(*blob).data, nil }

func (blobCodec) Unmarshal(data []byte, v any) error {
	v.(*blob).data = append([]byte(nil), data...)
	return nil
}

// meddle stands between client and server as a server of its own, with a fault.
func meddle(t *testing.T, address string, f fault) string {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.ForceServerCodec(blobCodec{}), grpc.UnknownServiceHandler(
		func(_ any, in grpc.ServerStream) error { return f.pass(in, conn) }))
	path := filepath.Join(t.TempDir(), "m")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := errors.Join(<-served, conn.Close()); err != nil {
			t.Error(err)
		}
	})
	return "unix://" + path
}

// pass hands one call through.
func (f fault) pass(in grpc.ServerStream, conn *grpc.ClientConn) error {
	method, _ := grpc.MethodFromServerStream(in)
	method = method[strings.LastIndexByte(method, '/')+1:]
	ctx := in.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, metadata.MD{"x-request-id": md.Get("x-request-id")})
	}
	out, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/sandbox.v1.SandboxService/"+method, grpc.ForceCodec(blobCodec{}))
	if err != nil {
		return err
	}
	go func() {
		for {
			var b blob
			if in.RecvMsg(&b) != nil {
				_ = out.CloseSend()
				return
			}
			if m := requests[method]; m != nil && f.request != nil {
				b.data = changed(m, b.data, func(m proto.Message) { f.request(method, m) })
			}
			if out.SendMsg(&b) != nil {
				return
			}
		}
	}()
	for {
		var b blob
		switch err := out.RecvMsg(&b); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && f.failed != nil:
			return f.failed(err)
		case err != nil:
			return err
		}
		for _, data := range f.answer(method, b.data) {
			if err := in.SendMsg(&blob{data}); err != nil {
				return err
			}
		}
	}
}

var (
	requests = map[string]proto.Message{
		"Execute": &sandboxv1.ExecuteRequest{}, "Attach": &sandboxv1.AttachRequest{}, "SignalProcess": &sandboxv1.SignalProcessRequest{},
	}
	replies = map[string]proto.Message{"WriteStdin": &sandboxv1.WriteStdinResponse{}}
)

func (f fault) answer(method string, data []byte) [][]byte {
	switch m := replies[method]; {
	case (method == "Execute" || method == "Attach") && f.event != nil:
		// The two have the same fields.
		var m sandboxv1.ExecuteResponse
		must(proto.Unmarshal(data, &m))
		var out [][]byte
		for _, e := range f.event(&m) {
			b, err := proto.Marshal(e)
			must(err)
			out = append(out, b)
		}
		return out
	case m != nil && f.reply != nil:
		return [][]byte{changed(m, data, func(m proto.Message) { f.reply(method, m) })}
	}
	return [][]byte{data}
}

func changed(kind proto.Message, data []byte, change func(proto.Message)) []byte {
	m := kind.ProtoReflect().New().Interface()
	must(proto.Unmarshal(data, m))
	change(m)
	b, err := proto.Marshal(m)
	must(err)
	return b
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("a message that cannot be: %v", err))
	}
}
