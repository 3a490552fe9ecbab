package sandgate

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type (
	// Started is the first event: the command runs.
	Started = sandboxv1.Started
	// Output is a piece of a command's output, never empty.
	Output = sandboxv1.Output
	// Gap is a range of output that was dropped before it was read.
	Gap = sandboxv1.Gap
	// Exited is the last event: how a command ended.
	Exited = sandboxv1.Exited
	// ExitReason is why a command ended.
	ExitReason = sandboxv1.ExitReason
	// TerminalSize is in characters.
	TerminalSize = sandboxv1.TerminalSize
	// SignalScope selects the processes that receive a signal.
	SignalScope = sandboxv1.SignalScope
	// FollowUntil selects when a stream of output ends.
	FollowUntil = sandboxv1.FollowUntil
	// AccessPolicy restricts file calls and, for writes, commands.
	AccessPolicy = sandboxv1.AccessPolicy
)

// Streams, scopes of a signal, and when a stream of events ends.
const (
	Stdout = sandboxv1.Stream_STREAM_STDOUT
	Stderr = sandboxv1.Stream_STREAM_STDERR

	Leader = sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER
	Group  = sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP
	Tree   = sandboxv1.SignalScope_SIGNAL_SCOPE_TREE

	LeaderExit = sandboxv1.FollowUntil_FOLLOW_UNTIL_LEADER_EXIT
	StreamsEnd = sandboxv1.FollowUntil_FOLLOW_UNTIL_STREAMS_END
)

// DefaultGrace is how long a command keeps running after its caller has disconnected.
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
	// Cwd is the absolute path to start in. Default: the sandbox's working directory.
	Cwd string
	// Env is added to the sandbox's environment. Never logged.
	Env map[string]string
	// Stdin is the standard input. Empty: /dev/null, unless StdinOpen.
	Stdin []byte
	// StdinOpen keeps standard input open for [Process.WriteStdin].
	StdinOpen bool
	// Timeout ends the command and all its descendants. 0: the server's default.
	// [Unlimited]: none.
	Timeout time.Duration
	// MaxOutputBytes limits the output: more is counted and dropped. 0: the server's
	// limit, if any.
	MaxOutputBytes int64
	// Merged sends stdout and stderr through one pipe, in exact order; all is stdout.
	Merged bool
	// Terminal gives the command a terminal of this size.
	Terminal *TerminalSize
	// Evict drops the oldest output when the retained output is full. Default: the
	// command blocks.
	Evict bool
	// DisconnectGrace is how long the command keeps running after its caller has disconnected.
	// 0: [DefaultGrace]. Negative: it is killed at once.
	DisconnectGrace time.Duration
	// Detach keeps the command running without a caller.
	Detach bool
	// Until selects when the events end. Default: shortly after the started process
	// ended.
	Until FollowUntil
	// ExecID is the command's id. Empty: the client generates one.
	ExecID string
	// Access narrows the sandbox's access policy for this command.
	Access *AccessPolicy
}

// message returns the request for a sandbox.
func (r *ExecuteRequest) message(s *Sandbox) *sandboxv1.ExecuteRequest {
	m := &sandboxv1.ExecuteRequest{
		SandboxId:           s.id,
		ExpectedIncarnation: s.Incarnation,
		ExecId:              r.ExecID,
		ShellPath:           r.ShellPath,
		Cwd:                 r.Cwd,
		Env:                 r.Env,
		Stdin:               r.Stdin,
		StdinOpen:           r.StdinOpen,
		Timeout:             duration(r.Timeout),
		MaxOutputBytes:      positive(r.MaxOutputBytes),
		Terminal:            r.Terminal,
		Detach:              r.Detach,
		FollowUntil:         r.Until,
		Access:              r.Access,
	}
	if m.GetExecId() == "" {
		m.ExecId = newID()
	}
	if r.Evict {
		m.OnFull = sandboxv1.OnFull_ON_FULL_EVICT
	}
	if r.Merged {
		m.OutputMode = sandboxv1.OutputMode_OUTPUT_MODE_MERGED
	}
	if !r.Detach {
		grace := r.DisconnectGrace
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

// positive returns nil for 0, which is the server's default.
func positive(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// Result is a command's output and exit status.
type Result struct {
	// ExecID is the command's id.
	ExecID string
	// Stdout and Stderr are the output, complete unless Missed is set or Exit's truncated
	// flags are.
	Stdout, Stderr []byte
	// Missed counts bytes that were dropped before they could be read.
	Missed int64
	// Exit is how the command ended; nil if an error came first.
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

// ExitCode returns an exit code for the end of a command, as a shell and the timeout
// program do: the command's own code, 124 if it timed out, 128 + n after signal n
// (137 if it ran out of memory), and 125 if the code is unknown because the sandbox
// stopped or its agent died.
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

// signals are the signal numbers of Linux on amd64 and arm64. A sandbox always runs
// Linux, whatever this client runs on.
var signals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6,
	"SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12,
	"SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15, "SIGSTKFLT": 16, "SIGCHLD": 17,
	"SIGCONT": 18, "SIGSTOP": 19, "SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22,
	"SIGURG": 23, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGVTALRM": 26, "SIGPROF": 27,
	"SIGWINCH": 28, "SIGIO": 29, "SIGPWR": 30, "SIGSYS": 31,
}
