package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Client is the part of sandboxv1.SandboxServiceClient that the sandbox cases
// use, so a client of a server is one.
type Client interface {
	Execute(ctx context.Context, in *sandboxv1.ExecuteRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[sandboxv1.ExecuteResponse], error)
	ListProcesses(ctx context.Context, in *sandboxv1.ListProcessesRequest, opts ...grpc.CallOption) (*sandboxv1.ListProcessesResponse, error)
	Upload(ctx context.Context, opts ...grpc.CallOption) (grpc.ClientStreamingClient[sandboxv1.UploadRequest, sandboxv1.UploadResponse], error)
	Download(ctx context.Context, in *sandboxv1.DownloadRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[sandboxv1.DownloadResponse], error)
	Forward(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse], error)
}

var _ Client = sandboxv1.SandboxServiceClient(nil)

// Sandbox is one sandbox as a case uses it.
type Sandbox struct {
	Client Client
	// ID goes into every request; an agent ignores it.
	ID string
	// Whole is true where a lack of memory ends the whole sandbox, as it does where
	// the kernel that runs out of it sees all its processes as one. Client must then
	// be a server's, which reports it.
	Whole bool
	// NoSeccomp is true where the sandbox's isolation lists seccomp as not enforced.
	NoSeccomp bool
	// GoProgram is a static build of conformance/goprogram for the sandbox's
	// machine. Empty: the cases that run it are skipped.
	GoProgram []byte

	dir string // where commands start
}

// SandboxCase is a case that only uses one sandbox.
type SandboxCase struct {
	// Name begins with the contract.
	Name string
	// Limits that a sandbox of the case's own must have. nil: any sandbox will do.
	Limits *sandboxv1.Resources
	// Group and Programs are as in [Case].
	Group    string
	Programs []string

	needs []string // protections
	hog   bool     // it asks for more memory than there is
	run   func(context.Context, T, Sandbox)
}

// Run runs the case in a sandbox. The sandbox must be usable afterwards, or must
// have failed with OUT_OF_MEMORY where the case requires that.
func (c SandboxCase) Run(ctx context.Context, t T, s Sandbox) {
	t.Helper()
	// The cases write nowhere else without need.
	s.dir = strings.TrimSpace(s.sh(ctx, t, "pwd").stdout)
	for _, program := range c.Programs {
		if r := s.sh(ctx, t, program); r.code() != 0 {
			t.Skipf("the sandbox has no such program: %s", program)
		}
	}
	c.run(ctx, t, s)
	if c.hog && s.Whole {
		s.assertOutOfMemory(ctx, t)
		return
	}
	s.assertAlive(ctx, t)
}

// assertAlive: whatever a case did, the agent must have come through it.
func (s Sandbox) assertAlive(ctx context.Context, t T) {
	t.Helper()
	if r := s.sh(ctx, t, "echo alive"); r.stdout != "alive\n" {
		t.Errorf("afterwards the sandbox says %v", r)
	}
}

// assertOutOfMemory: a sandbox that is gone must say why.
func (s Sandbox) assertOutOfMemory(ctx context.Context, t T) {
	t.Helper()
	r := s.execute(ctx, t, shell("echo alive"))
	own := (*sandgate.Error)(nil)
	if !errors.As(r.err, &own) || own.Reason != "SANDBOX_NOT_ACTIVE" || own.Metadata["failure"] != "OUT_OF_MEMORY" {
		t.Errorf("afterwards the sandbox says %v", r)
	}
}

// SandboxCases returns the cases that only use one sandbox.
func SandboxCases() []SandboxCase {
	return slices.Concat([]SandboxCase{
		{Name: "C04_started_first_exited_last", run: startedFirstExitedLast},
		{Name: "C04_cannot_start", run: cannotStart},
		{Name: "C05_exit_codes_and_signals", run: exitCodesAndSignals},
		{Name: "C06_output_is_bytes", run: outputIsBytes},
		{Name: "C06_streams_apart", run: streamsApart},
		{Name: "C09_timeout", run: timeoutEndsIt},
		{Name: "C09_timeout_kills_all_that_hide", run: timeoutKillsAllThatHide},
		{Name: "C09_cancel_kills", run: cancelKills},
		{Name: "C13_stdin", run: stdin},
		{Name: "C14_cwd_env_argv", run: cwdEnvArgv},
		{Name: "C14_large_script", run: largeScript},
		{Name: "C15_same_files_and_user", run: sameFilesAndUser},
		{Name: "C16_upload_download_1MiB", run: uploadDownload},
		{Name: "C16_upload_makes_parents", run: uploadMakesParents},
		{Name: "C16_upload_ended_within_a_file_keeps_the_old", run: uploadEndedWithinAFile},
		{Name: "C19_file_errors", run: fileErrors},
		{Name: "C24_not_root", run: notRoot, needs: []string{"unprivileged"}},
		{Name: "C24_no_network", run: noNetwork, needs: []string{"network"}},
		{Name: "C24_loopback", run: loopback, needs: []string{"network"}},
		{Name: "C24_no_host_files", run: noHostFiles, needs: []string{"unprivileged"}},
		{Name: "C24_no_namespaces_of_its_own", run: noNamespaces, needs: []string{"unprivileged"}},
		{Name: "C24_read_only_system", run: readOnlySystem, needs: []string{"unprivileged"}},
		{Name: "C24_writable_places", run: writablePlaces, needs: []string{"unprivileged"}},
		{Name: "C24_python", run: python, needs: []string{"unprivileged"}},
		{Name: "C24_fork_bomb", run: forkBomb, needs: []string{"processes"}, Limits: &sandboxv1.Resources{MaxProcesses: 128}},
		{Name: "C24_no_process_left", run: noProcessLeft, needs: []string{"processes"}, Limits: &sandboxv1.Resources{MaxProcesses: 128}},
		{Name: "C24_memory_hog", run: memoryHog, needs: []string{"memory"}, hog: true, Limits: &sandboxv1.Resources{MemoryBytes: 128 << 20}},
		{Name: "C24_disk_hog", run: diskHog, needs: []string{"disk"}, Limits: &sandboxv1.Resources{DiskBytes: 64 << 20}},
	}, programCases(), forwardCases)
}

// result is a command that ended.
type result struct {
	stdout, stderr string
	started        *sandboxv1.Started
	exited         *sandboxv1.Exited
	err            error
}

// String is for messages: output may be large.
func (r result) String() string {
	return fmt.Sprintf("stdout %s, stderr %s, %v, error %v", brief(r.stdout), brief(r.stderr), r.exited, r.err)
}

// brief quotes a text, or its beginning.
func brief(s string) string {
	const most = 500
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
}

// code returns the exit code, or -1.
func (r result) code() int {
	if r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
		return -1
	}
	return int(r.exited.GetExitCode())
}

// sh runs a script that must start.
func (s Sandbox) sh(ctx context.Context, t T, script string) result {
	t.Helper()
	r := s.execute(ctx, t, shell(script))
	if r.err != nil {
		t.Fatalf("%s: %v", brief(script), r.err)
	}
	return r
}

func shell(script string) *sandboxv1.ExecuteRequest {
	return &sandboxv1.ExecuteRequest{
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: script}, Timeout: durationpb.New(time.Minute),
	}
}

func argv(args ...string) *sandboxv1.ExecuteRequest {
	return &sandboxv1.ExecuteRequest{
		Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: args}}, Timeout: durationpb.New(time.Minute),
	}
}

// execute runs a command to its end and holds the stream to its order.
func (s Sandbox) execute(ctx context.Context, t T, req *sandboxv1.ExecuteRequest) result {
	t.Helper()
	req.SandboxId = s.ID
	stream, err := s.Client.Execute(ctx, req)
	if err != nil {
		return result{err: err}
	}
	return follow(t, func() (event, error) { return stream.Recv() })
}

// event is what the events of Execute and Attach have in common.
type event interface {
	GetStarted() *sandboxv1.Started
	GetOutput() *sandboxv1.Output
	GetGap() *sandboxv1.Gap
	GetExited() *sandboxv1.Exited
}

// follow reads a stream to its end and holds it to its order.
func follow(t T, recv func() (event, error)) result {
	t.Helper()
	var r result
	var out, errOut bytes.Buffer
	var position int64
	for {
		m, err := recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = err
			} else if r.exited == nil {
				t.Errorf("the stream ended well without exited")
			}
			r.stdout, r.stderr = out.String(), errOut.String()
			return r
		}
		switch {
		case r.exited != nil:
			t.Errorf("%v came after exited", m)
		case (m.GetStarted() != nil) == (r.started != nil):
			t.Errorf("%v came where started was %v", m, r.started)
		}
		switch {
		case m.GetStarted() != nil:
			r.started, position = m.GetStarted(), m.GetStarted().GetPosition()
		case m.GetOutput() != nil:
			o := m.GetOutput()
			if o.GetPosition() != position || len(o.GetData()) == 0 {
				t.Errorf("%d bytes of output at position %d, expected some at %d", len(o.GetData()), o.GetPosition(), position)
			}
			position += int64(len(o.GetData()))
			if o.GetStream() == sandboxv1.Stream_STREAM_STDERR {
				errOut.Write(o.GetData())
			} else {
				out.Write(o.GetData())
			}
		case m.GetGap() != nil:
			t.Errorf("nothing may be missing here, but %v came", m.GetGap())
			position = m.GetGap().GetEnd()
		case m.GetExited() != nil:
			r.exited = m.GetExited()
			if got := r.exited.GetPosition(); got != position {
				t.Errorf("exited says position %d after output up to %d", got, position)
			}
		}
	}
}

// Shell runs a script in a sandbox and returns what it wrote to standard output.
func (s Sandbox) Shell(ctx context.Context, t T, script string) string {
	t.Helper()
	return s.sh(ctx, t, script).stdout
}
