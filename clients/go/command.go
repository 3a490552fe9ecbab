package sandgate

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type (
	// Started says that a command runs.
	Started = sandboxv1.Started
	// Output is a piece of a command's output, never empty.
	Output = sandboxv1.Output
	// Gap says that output was dropped before it was read.
	Gap = sandboxv1.Gap
	// Exited says how a command ended.
	Exited = sandboxv1.Exited
	// ExitReason says why a command ended.
	ExitReason = sandboxv1.ExitReason
	// TerminalSize is in characters.
	TerminalSize = sandboxv1.TerminalSize
	// SignalScope says who gets a signal.
	SignalScope = sandboxv1.SignalScope
	// FollowUntil says when a stream of output ends.
	FollowUntil = sandboxv1.FollowUntil
	// OnFull says what happens when a command's retained output is full.
	OnFull = sandboxv1.OnFull
	// AccessPolicy restricts file calls and, for writes, commands.
	AccessPolicy = sandboxv1.AccessPolicy
)

// Streams, and who gets a signal.
const (
	Stdout = sandboxv1.Stream_STREAM_STDOUT
	Stderr = sandboxv1.Stream_STREAM_STDERR

	Leader = sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER
	Group  = sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP
	Tree   = sandboxv1.SignalScope_SIGNAL_SCOPE_TREE

	LeaderExit = sandboxv1.FollowUntil_FOLLOW_UNTIL_LEADER_EXIT
	StreamsEnd = sandboxv1.FollowUntil_FOLLOW_UNTIL_STREAMS_END

	EvictWhenFull = sandboxv1.OnFull_ON_FULL_EVICT
)

// DefaultGrace is how long a command lives on after its caller went away.
const DefaultGrace = 60 * time.Second

// ExecuteRequest describes one command. Either Shell or Argv is required.
type ExecuteRequest struct {
	// Shell is a script for /bin/sh -c, of any size up to 4 MiB or what the
	// server allows.
	Shell string
	// Argv is a program and its arguments, run without a shell.
	Argv []string
	// ShellPath is another shell for Shell, an absolute path.
	ShellPath string
	// Dir is the absolute path to start in. Default: the sandbox's.
	Dir string
	// Env is added to the sandbox's environment. Never logged.
	Env map[string]string
	// Stdin is given at once. Empty: /dev/null, unless StdinOpen.
	Stdin []byte
	// StdinOpen keeps standard input open for [Process.WriteStdin].
	StdinOpen bool
	// Timeout ends the command and all its descendants. 0: the server's default.
	// [Unlimited]: none.
	Timeout time.Duration
	// MaxOutputBytes: what is printed beyond is counted and dropped. 0: the
	// server's limit, if any.
	MaxOutputBytes int64
	// Merge takes both output streams through one pipe, in exact order.
	Merge bool
	// Terminal gives the command a terminal of this size.
	Terminal *TerminalSize
	// OnFull says what happens when the kept output is full. Default: the
	// command waits.
	OnFull OnFull
	// Grace is how long the command lives on when its caller went away without a
	// word. 0: [DefaultGrace]. Below 0: it is killed at once.
	Grace time.Duration
	// Detach lets the command run on whoever listens.
	Detach bool
	// Until says when the events end. Default: shortly after the started process
	// ended.
	Until FollowUntil
	// ExecID is the command's id. Empty: the client makes one up.
	ExecID string
	// Access narrows the sandbox's access policy for this command.
	Access *AccessPolicy
}

// message makes the request for a sandbox.
func (r *ExecuteRequest) message(s *Sandbox) *sandboxv1.ExecuteRequest {
	m := &sandboxv1.ExecuteRequest{
		SandboxId:           s.id,
		ExpectedIncarnation: s.Incarnation,
		ExecId:              r.ExecID,
		ShellPath:           r.ShellPath,
		Cwd:                 r.Dir,
		Env:                 r.Env,
		Stdin:               r.Stdin,
		StdinOpen:           r.StdinOpen,
		Timeout:             duration(r.Timeout),
		MaxOutputBytes:      positive(r.MaxOutputBytes),
		Terminal:            r.Terminal,
		OnFull:              r.OnFull,
		Detach:              r.Detach,
		FollowUntil:         r.Until,
		Access:              r.Access,
	}
	if m.GetExecId() == "" {
		m.ExecId = newID()
	}
	if r.Merge {
		m.OutputMode = sandboxv1.OutputMode_OUTPUT_MODE_MERGED
	}
	if !r.Detach {
		grace := r.Grace
		if grace == 0 {
			grace = DefaultGrace
		}
		m.DisconnectGrace = durationpb.New(max(grace, 0))
	}
	switch {
	case len(r.Argv) > 0:
		m.Command = &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: r.Argv}}
	case r.Shell != "":
		m.Command = &sandboxv1.ExecuteRequest_Shell{Shell: r.Shell}
	}
	return m
}

// positive turns 0 into "not said".
func positive(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// Result is a command's output and end.
type Result struct {
	// ExecID is the command's id.
	ExecID string
	// Stdout and Stderr are what the command wrote, whole unless Missed or the
	// Exit's truncated flags say otherwise.
	Stdout, Stderr []byte
	// Missed counts bytes that were dropped before they could be read.
	Missed int64
	// Exit says how the command ended; nil beside an error that came before.
	Exit *Exited
}

func (r *Result) add(e Event) {
	switch {
	case e.Output != nil && e.Output.GetStream() == Stderr:
		r.Stderr = append(r.Stderr, e.Output.GetData()...)
	case e.Output != nil:
		r.Stdout = append(r.Stdout, e.Output.GetData()...)
	case e.Gap != nil:
		r.Missed += e.Gap.GetEnd() - e.Gap.GetStart()
	case e.Exited != nil:
		r.Exit = e.Exited
	}
}

// Code returns the exit code as a shell would: see [ExitCode].
func (r *Result) Code() int { return ExitCode(r.Exit) }

// ExitCode turns the end of a command into an exit code, as a shell and the
// timeout program do: its own code, 124 when its timeout ended, 128 + n after
// signal n (137 when memory ran out), and 125 when no code is known because the
// sandbox stopped or its agent died.
func ExitCode(e *Exited) int {
	switch e.GetReason() {
	case sandboxv1.ExitReason_EXIT_REASON_EXITED:
		return int(e.GetExitCode())
	case sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT:
		return 124
	case sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY:
		return 137
	case sandboxv1.ExitReason_EXIT_REASON_SIGNALED, sandboxv1.ExitReason_EXIT_REASON_KILLED:
		if n, ok := signals[e.GetSignal()]; ok {
			return 128 + n
		}
		return 137
	}
	return 125
}

// signals are the numbers that Linux on amd64 and arm64 gives to names; a
// sandbox is always Linux, whatever this client runs on.
var signals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6,
	"SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12,
	"SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15, "SIGSTKFLT": 16, "SIGCHLD": 17,
	"SIGCONT": 18, "SIGSTOP": 19, "SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22,
	"SIGURG": 23, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGVTALRM": 26, "SIGPROF": 27,
	"SIGWINCH": 28, "SIGIO": 29, "SIGPWR": 30, "SIGSYS": 31,
}
