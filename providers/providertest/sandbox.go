package providertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// Sandbox is one sandbox as a case uses it.
type Sandbox struct {
	Client Client
	// ID goes into every request; an agent ignores it.
	ID string

	dir string // where commands start
}

// SandboxHarness is what the suite needs to hold the sandboxes behind a server
// to the same cases.
type SandboxHarness struct {
	// New makes a sandbox with limits, ready for commands, that goes with t. The
	// server's defaults apply to limits of 0.
	New func(t *testing.T, r providers.Resources) Sandbox
	// Except names the cases that do not apply, with the reason.
	Except map[string]string
}

// RunSandbox holds sandboxes to the cases that only use one, over any Client.
func RunSandbox(t *testing.T, h SandboxHarness) {
	t.Helper()
	checkExceptions(t, h.Except, sandboxCaseNames())
	runSandboxCases(t, h.Except, func(t *testing.T, change func(*providers.Spec)) Sandbox {
		var spec providers.Spec
		change(&spec)
		return h.New(t, spec.Resources)
	})
}

type sandboxCase struct {
	name string
	run  func(context.Context, *testing.T, Sandbox)
	// limits makes a sandbox of the case's own.
	limits func(*providers.Resources)
}

var sandboxCases = []sandboxCase{
	{name: "C04_started_first_exited_last", run: startedFirstExitedLast},
	{name: "C04_cannot_start", run: cannotStart},
	{name: "C05_exit_codes_and_signals", run: exitCodesAndSignals},
	{name: "C06_output_is_bytes", run: outputIsBytes},
	{name: "C06_streams_apart", run: streamsApart},
	{name: "C09_timeout", run: timeoutEndsIt},
	{name: "C09_timeout_kills_all_that_hide", run: timeoutKillsAllThatHide},
	{name: "C09_cancel_kills", run: cancelKills},
	{name: "C13_stdin", run: stdin},
	{name: "C14_cwd_env_argv", run: cwdEnvArgv},
	{name: "C14_large_script", run: largeScript},
	{name: "C15_same_files_and_user", run: sameFilesAndUser},
	{name: "C16_upload_download_1MiB", run: uploadDownload},
	{name: "C16_upload_makes_parents", run: uploadMakesParents},
	{name: "C19_file_errors", run: fileErrors},
	{name: "C24_not_root", run: notRoot},
	{name: "C24_no_network", run: noNetwork},
	{name: "C24_loopback", run: loopback},
	{name: "C24_no_host_files", run: noHostFiles},
	{name: "C24_no_namespaces_of_its_own", run: noNamespaces},
	{name: "C24_read_only_system", run: readOnlySystem},
	{name: "C24_writable_places", run: writablePlaces},
	{name: "C24_python", run: python},
	{name: "C24_fork_bomb", run: forkBomb, limits: func(r *providers.Resources) { r.MaxProcesses = 128 }},
	{name: "C24_memory_hog", run: memoryHog, limits: func(r *providers.Resources) { r.MemoryBytes = 128 << 20 }},
	{name: "C24_disk_hog", run: diskHog, limits: func(r *providers.Resources) { r.DiskBytes = 64 << 20 }},
}

func sandboxCaseNames() map[string]bool {
	names := map[string]bool{}
	for _, c := range sandboxCases {
		names[c.name] = true
	}
	return names
}

func runSandboxCases(t *testing.T, except map[string]string, make func(*testing.T, func(*providers.Spec)) Sandbox) {
	t.Helper()
	make = inWorkspace(make)
	shared := make(t, func(*providers.Spec) {})
	for _, c := range sandboxCases {
		if excepted(t, except, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
			defer cancel()
			s := shared
			if c.limits != nil {
				s = make(t, func(spec *providers.Spec) { c.limits(&spec.Resources) })
			}
			c.run(ctx, t, s)
			// Whatever the case did, the agent must have come through it.
			if r := s.sh(ctx, t, "echo alive"); r.stdout != "alive\n" {
				t.Errorf("afterwards the sandbox says %+v", r)
			}
		})
	}
}

// inWorkspace finds out where commands start: the cases write nowhere else
// without need.
func inWorkspace(make func(*testing.T, func(*providers.Spec)) Sandbox) func(*testing.T, func(*providers.Spec)) Sandbox {
	return func(t *testing.T, change func(*providers.Spec)) Sandbox {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
		defer cancel()
		s := make(t, change)
		s.dir = strings.TrimSpace(s.sh(ctx, t, "pwd").stdout)
		return s
	}
}

// newSandbox makes one directly on a provider.
func newSandbox(t *testing.T, h Harness, p providers.Provider, change func(*providers.Spec)) Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	b := &box{h: h, p: p}
	name := name(t)
	spec := b.spec(name)
	change(&spec)
	b.create(ctx, t, name, spec)
	conn := connect(t, p, name)
	t.Cleanup(func() { _ = conn.Close() })
	return Sandbox{Client: agentClient{agentv1.NewAgentServiceClient(conn)}, ID: name}
}

// result is a command that ended.
type result struct {
	stdout, stderr string
	started        *sandboxv1.Started
	exited         *sandboxv1.Exited
	err            error
}

// code returns the exit code, or -1.
func (r result) code() int {
	if r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
		return -1
	}
	return int(r.exited.GetExitCode())
}

// sh runs a script that must start.
func (s Sandbox) sh(ctx context.Context, t *testing.T, script string) result {
	t.Helper()
	r := s.execute(ctx, t, shell(script))
	if r.err != nil {
		t.Fatalf("%s: %v", script, r.err)
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
func (s Sandbox) execute(ctx context.Context, t *testing.T, req *sandboxv1.ExecuteRequest) result {
	t.Helper()
	req.SandboxId = s.ID
	stream, err := s.Client.Execute(ctx, req)
	if err != nil {
		return result{err: err}
	}
	var r result
	var out, errOut bytes.Buffer
	var position int64
	for {
		m, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = err
			} else if r.exited == nil {
				t.Error("the stream ended well without exited")
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
		switch e := m.GetEvent().(type) {
		case *sandboxv1.ExecuteResponse_Started:
			r.started, position = e.Started, e.Started.GetPosition()
		case *sandboxv1.ExecuteResponse_Output:
			if e.Output.GetPosition() != position {
				t.Errorf("output at position %d, expected %d", e.Output.GetPosition(), position)
			}
			position += int64(len(e.Output.GetData()))
			if e.Output.GetStream() == sandboxv1.Stream_STREAM_STDERR {
				errOut.Write(e.Output.GetData())
			} else {
				out.Write(e.Output.GetData())
			}
		case *sandboxv1.ExecuteResponse_Exited:
			r.exited = e.Exited
		}
	}
}

// Shell runs a script in a provider's sandbox and returns what it wrote to
// standard output, for a provider's own tests.
func Shell(t *testing.T, p providers.Provider, name, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	conn := connect(t, p, name)
	defer func() { _ = conn.Close() }()
	s := Sandbox{Client: agentClient{agentv1.NewAgentServiceClient(conn)}, ID: name}
	return s.sh(ctx, t, script).stdout
}
