package server

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The documented bounds of an environment and an argv.
const (
	maxEnvNames = 1_000
	maxEnv      = 1 << 20
	maxArgv     = 2 << 20
)

// What would keep an agent or a runtime busy is refused before it reaches one.
func TestOversizedRequestsReachNoAgent(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	names := func(n int) map[string]string {
		m := make(map[string]string, n)
		for i := range n {
			m[fmt.Sprintf("V%d", i)] = ""
		}
		return m
	}
	long := "/" + strings.Repeat("x", 9<<20)
	argv := func(args ...string) *sandboxv1.ExecuteRequest {
		return &sandboxv1.ExecuteRequest{SandboxId: "a",
			Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: args}}}
	}
	env := func(m map[string]string) *sandboxv1.ExecuteRequest {
		r := argv("true")
		r.Env = m
		return r
	}
	create := func(s *sandboxv1.SandboxSpec) error {
		return call1(h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "b", Spec: s}))
	}
	execute := func(r *sandboxv1.ExecuteRequest) error { return call1(h.execute(t.Context(), r)) }
	download := func(p string) error {
		stream, err := h.client.Download(t.Context(), &sandboxv1.DownloadRequest{SandboxId: "a",
			Items: []*sandboxv1.DownloadItem{{Path: "/x"}, {Path: p}}})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for name, c := range map[string]struct {
		call func() error
		want string
	}{
		"names":              {func() error { return execute(env(names(maxEnvNames + 1))) }, "REQUEST_INVALID"},
		"values":             {func() error { return execute(env(map[string]string{"A": strings.Repeat("x", maxEnv)})) }, "REQUEST_INVALID"},
		"names of a spec":    {func() error { return create(&sandboxv1.SandboxSpec{Env: names(maxEnvNames + 1)}) }, "REQUEST_INVALID"},
		"program":            {func() error { return execute(argv(long)) }, "REQUEST_INVALID"},
		"argv":               {func() error { return execute(argv("true", long[:maxArgv])) }, "REQUEST_INVALID"},
		"command of a spec":  {func() error { return create(&sandboxv1.SandboxSpec{Command: []string{long}}) }, "REQUEST_INVALID"},
		"path of a download": {func() error { return download(long) }, "PATH_INVALID"},
		"path": {func() error {
			return call1(h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: long}))
		}, "PATH_INVALID"},
	} {
		t.Run(name, func(t *testing.T) { wantReason(t, c.call(), c.want) })
	}
	if err := execute(env(names(maxEnvNames))); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	if n := h.sandbox("a").dials.Load(); n != 1 {
		t.Errorf("%d dials: a connection was cut", n)
	}
}

// An agent's long error reaches the caller short, and its connection stays.
func TestAgentErrorsAreShort(t *testing.T) {
	h := newHarness(t, nil)
	text := strings.Repeat("x", 6_000)
	h.provider.script.stat = func(*sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
		st, err := status.New(codes.NotFound, text).WithDetails(&errdetails.ErrorInfo{
			Reason: "FILE_NOT_FOUND", Domain: "sandgate", Metadata: map[string]string{"path": text}})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	h.create("a")
	_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"})
	wantReason(t, err, "FILE_NOT_FOUND")
	if n := len(status.Convert(err).Message()); n > 512 {
		t.Errorf("a message of %d bytes", n)
	}
}
