package agent

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestExecute(t *testing.T) { eachSetup(t, testExecute) }

func testExecute(t *testing.T, h *harness) {
	for name, c := range map[string]struct {
		request        *sandboxv1.ExecuteRequest
		code           int32
		stdout, stderr string
	}{
		"both streams":       {request: shell("echo out; echo err >&2; exit 3"), code: 3, stdout: "out\n", stderr: "err\n"},
		"argv":               {request: argv("printf", "%s|", "a b", "$HOME", "c"), stdout: "a b|$HOME|c|"},
		"cwd":                {request: &sandboxv1.ExecuteRequest{Command: shell("pwd").GetCommand(), Cwd: "/usr"}, stdout: "/usr\n"},
		"env":                {request: &sandboxv1.ExecuteRequest{Command: shell(`echo "$A"`).GetCommand(), Env: map[string]string{"A": "x\ny"}}, stdout: "x\ny\n"},
		"no agent variables": {request: shell("env | grep -c SANDGATE_AGENT"), code: 1, stdout: "0\n"},
		"stdin":              {request: &sandboxv1.ExecuteRequest{Command: shell("cat").GetCommand(), Stdin: []byte("a\x00b\xff")}, stdout: "a\x00b\xff"},
		"no stdin":           {request: shell("cat; readlink /proc/self/fd/0"), stdout: "/dev/null\n"},
		"large stdin":        {request: &sandboxv1.ExecuteRequest{Command: shell("wc -c").GetCommand(), Stdin: make([]byte, 3<<20)}, stdout: "3145728\n"},
		"unread stdin":       {request: &sandboxv1.ExecuteRequest{Command: shell("exit 0").GetCommand(), Stdin: make([]byte, 3<<20)}},
		"dollar zero":        {request: shell(`echo "$0" $#`), stdout: "/bin/sh 0\n"},
		"large script":       {request: shell(`echo "$0" $#; cat; exit 4;` + strings.Repeat("# padding\n", 40_000)), code: 4, stdout: "/bin/sh 0\n"},
		"own session":        {request: shell(`read a b c d e f g < /proc/self/stat; test "$e" = "$f" && test "$f" != 0 && echo yes`), stdout: "yes\n"},
		"few descriptors":    {request: shell("ls /proc/self/fd | wc -l"), stdout: "4\n"},
		"oom_score_adj":      {request: shell("sleep 0.05; cat /proc/self/oom_score_adj"), stdout: "500\n"},
		"signals are as usual": {request: shell("grep -E 'SigBlk|SigIgn' /proc/self/status | tr -d '\\t'"),
			stdout: "SigBlk:0000000000000000\nSigIgn:0000000000000000\n"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := h.run(t, c.request)
			if r.err != nil {
				t.Fatal(r.err)
			}
			if r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED || r.exited.GetExitCode() != c.code || r.exited.ExitCode == nil {
				t.Errorf("ended %v, want code %d; stderr %q", r.exited, c.code, r.stderr)
			}
			if string(r.stdout) != c.stdout || string(r.stderr) != c.stderr {
				t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
			}
			if r.exited.GetStdoutBytes() != int64(len(r.stdout)) || r.exited.GetStderrBytes() != int64(len(r.stderr)) ||
				r.exited.GetPosition() != int64(len(r.all)) || r.exited.GetStdoutTruncated() {
				t.Errorf("counts: %v", r.exited)
			}
			if r.started.GetIncarnation() != "first" || r.started.GetPid() <= 0 || r.started.GetJoined() || r.exited.GetWallTime().AsDuration() <= 0 {
				t.Errorf("started %v, exited %v", r.started, r.exited)
			}
		})
	}
}

func TestMerged(t *testing.T) {
	h := start(t, setup{})
	r := shell("for i in 1 2 3; do echo o$i; echo e$i >&2; done")
	r.OutputMode = sandboxv1.OutputMode_OUTPUT_MODE_MERGED
	if got := h.run(t, r); string(got.stdout) != "o1\ne1\no2\ne2\no3\ne3\n" || len(got.stderr) != 0 {
		t.Fatalf("%q, %q", got.stdout, got.stderr)
	}
}

func reasonOf(t testing.TB, err error) string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i.GetReason()
		}
	}
	return ""
}

func TestStartErrors(t *testing.T) { eachSetup(t, testStartErrors) }

func testStartErrors(t *testing.T, h *harness) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		request *sandboxv1.ExecuteRequest
		code    codes.Code
		reason  string
	}{
		"no interpreter":   {argv(script), codes.FailedPrecondition, "COMMAND_NOT_EXECUTABLE"},
		"missing program":  {argv("no-such-program"), codes.NotFound, "COMMAND_NOT_FOUND"},
		"missing path":     {argv("/no/such/program"), codes.NotFound, "COMMAND_NOT_FOUND"},
		"not executable":   {argv("/etc/passwd"), codes.FailedPrecondition, "COMMAND_NOT_EXECUTABLE"},
		"directory":        {argv("/usr"), codes.FailedPrecondition, "COMMAND_NOT_EXECUTABLE"},
		"missing cwd":      {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), Cwd: "/no/such"}, codes.FailedPrecondition, "WORKING_DIRECTORY_INVALID"},
		"cwd is a file":    {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), Cwd: "/etc/passwd"}, codes.FailedPrecondition, "WORKING_DIRECTORY_INVALID"},
		"relative cwd":     {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), Cwd: "tmp"}, codes.InvalidArgument, "REQUEST_INVALID"},
		"missing shell":    {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), ShellPath: "/no/sh"}, codes.NotFound, "COMMAND_NOT_FOUND"},
		"no command":       {&sandboxv1.ExecuteRequest{}, codes.InvalidArgument, "REQUEST_INVALID"},
		"empty argv":       {argv(), codes.InvalidArgument, "REQUEST_INVALID"},
		"NUL":              {argv("echo", "a\x00b"), codes.InvalidArgument, "REQUEST_INVALID"},
		"bad id":           {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), ExecId: "a/b"}, codes.InvalidArgument, "REQUEST_INVALID"},
		"bad variable":     {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), Env: map[string]string{"A=B": "c"}}, codes.InvalidArgument, "REQUEST_INVALID"},
		"huge argument":    {argv("echo", strings.Repeat("x", 200_000)), codes.InvalidArgument, "REQUEST_INVALID"},
		"negative timeout": {&sandboxv1.ExecuteRequest{Command: shell("true").GetCommand(), Timeout: durationpb.New(-1)}, codes.InvalidArgument, "REQUEST_INVALID"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := h.run(t, c.request)
			if status.Code(r.err) != c.code || reasonOf(t, r.err) != c.reason || r.started != nil {
				t.Fatalf("got %v with %s", r.err, reasonOf(t, r.err))
			}
		})
	}
}

func TestEndReasons(t *testing.T) {
	mark := newMark()
	for name, c := range map[string]struct {
		request *sandboxv1.ExecuteRequest
		want    sandboxv1.ExitReason
		signal  string
		act     func(*testing.T, *harness, string)
	}{
		"signaled":         {request: shell("kill -SEGV $$"), want: sandboxv1.ExitReason_EXIT_REASON_SIGNALED, signal: "SIGSEGV"},
		"killed by itself": {request: shell("kill -9 $$"), want: sandboxv1.ExitReason_EXIT_REASON_SIGNALED, signal: "SIGKILL"},
		"timed out": {
			request: &sandboxv1.ExecuteRequest{Command: shell("echo begun; sleep 100").GetCommand(), Timeout: durationpb.New(200 * time.Millisecond)},
			want:    sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT, signal: "SIGKILL",
		},
		"killed": {
			request: shell("echo begun; sleep 100"), want: sandboxv1.ExitReason_EXIT_REASON_KILLED, signal: "SIGKILL",
			act: func(t *testing.T, h *harness, id string) {
				h.signal(t, id, "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE)
			},
		},
		"terminated": {
			request: shell("echo begun; exec sleep 100"), want: sandboxv1.ExitReason_EXIT_REASON_KILLED, signal: "SIGTERM",
			act: func(t *testing.T, h *harness, id string) {
				h.signal(t, id, "sigterm", sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER)
			},
		},
		"group": {
			request: shell("sleep 3600." + mark + " & echo begun; wait"), want: sandboxv1.ExitReason_EXIT_REASON_KILLED, signal: "SIGHUP",
			act: func(t *testing.T, h *harness, id string) {
				h.signal(t, id, "HUP", sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP)
				eventually(t, "the child is dead", func() bool { return len(alive("3600."+mark)) == 0 })
			},
		},
		"handled": {
			request: shell("trap 'exit 5' TERM; echo begun; while :; do sleep 0.01; done"), want: sandboxv1.ExitReason_EXIT_REASON_EXITED,
			act: func(t *testing.T, h *harness, id string) {
				h.signal(t, id, "TERM", sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER)
			},
		},
		"stopped": {
			request: shell("echo begun; sleep 100"), want: sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED, signal: "SIGKILL",
			act: func(t *testing.T, h *harness, _ string) {
				if _, err := h.Shutdown(testContext(t), &agentv1.ShutdownRequest{}); err != nil {
					t.Error(err)
				}
			},
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			eachSetup(t, func(t *testing.T, h *harness) {
				c.request.ExecId = "it"
				s, err := h.Execute(testContext(t), c.request)
				if err != nil {
					t.Fatal(err)
				}
				begun := false
				acted := make(chan struct{})
				if c.act == nil {
					close(acted)
				}
				r := collect(t, func() (*sandboxv1.ExecuteResponse, error) {
					e, err := s.Recv()
					if e.GetOutput() != nil && c.act != nil && !begun {
						begun = true
						go func() {
							defer close(acted)
							c.act(t, h, "it")
						}()
					}
					return e, err
				}, 0)
				<-acted
				if r.err != nil {
					t.Fatal(r.err)
				}
				if r.exited.GetReason() != c.want || r.exited.GetSignal() != c.signal {
					t.Fatalf("ended %v", r.exited)
				}
				if (r.exited.ExitCode != nil) != (c.want == sandboxv1.ExitReason_EXIT_REASON_EXITED) {
					t.Fatalf("exit code of %v", r.exited)
				}
			})
		})
	}
}

func (h *harness) signal(t testing.TB, id, signal string, scope sandboxv1.SignalScope) bool {
	r, err := h.SignalProcess(testContext(t), &sandboxv1.SignalProcessRequest{ExecId: id, Signal: signal, Scope: scope})
	if err != nil {
		t.Error(err)
	}
	return r.GetDelivered()
}

// A large output is intact, in order and whole, also with both streams busy.
func TestLargeOutputIsWholeAndInOrder(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		const size = 100 << 20
		got := h.run(t, shell("f=$(mktemp); head -c 104857600 /dev/urandom > $f; cat $f; sha256sum < $f >&2; rm $f"))
		if got.err != nil || len(got.stdout) != size {
			t.Fatalf("%d bytes, %v, %v", len(got.stdout), got.exited, got.err)
		}
		sum := sha256.Sum256(got.stdout)
		if !strings.HasPrefix(string(got.stderr), hexOf(sum[:])) {
			t.Fatalf("hash differs: %s", got.stderr)
		}
	})
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

func TestOutputCap(t *testing.T) {
	h := start(t, setup{})
	r := shell("head -c 5000000 /dev/zero; echo end >&2")
	r.MaxOutputBytes = proto.Int64(1000)
	got := h.run(t, r)
	if len(got.all) != 1000 || got.exited.GetStdoutBytes() != 5_000_000 || !got.exited.GetStdoutTruncated() ||
		got.exited.GetStderrBytes() != 4 || !got.exited.GetStderrTruncated() || got.exited.GetExitCode() != 0 {
		t.Fatalf("%d bytes, %v", len(got.all), got.exited)
	}
	r.MaxOutputBytes = proto.Int64(0)
	got = h.run(t, r)
	if len(got.all) != 0 || got.exited.GetStdoutBytes() != 5_000_000 || !got.exited.GetStdoutTruncated() {
		t.Fatalf("%d bytes, %v", len(got.all), got.exited)
	}
	r.MaxOutputBytes = nil
	limited := h.runWith(t, r, &agentv1.CallContext{Limits: &agentv1.Limits{MaxOutputBytes: 70}})
	if len(limited.all) != 70 {
		t.Fatalf("%d bytes", len(limited.all))
	}
}

func TestLimitsOfTimeout(t *testing.T) {
	h := start(t, setup{})
	for name, l := range map[string]*agentv1.Limits{
		"default": {DefaultTimeout: durationpb.New(50 * time.Millisecond)},
		"maximum": {MaxTimeout: durationpb.New(50 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			r := h.runWith(t, shell("sleep 100"), &agentv1.CallContext{Limits: l})
			if r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
				t.Fatalf("ended %v, %v", r.exited, r.err)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		r := h.run(t, shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; dd if=/dev/zero of=/dev/null bs=70M count=2 iflag=fullblock"))
		if r.exited.GetUserTime().AsDuration() < 10*time.Millisecond || r.exited.GetWallTime().AsDuration() < 10*time.Millisecond {
			t.Errorf("times: %v", r.exited)
		}
		if r.exited.GetPeakMemoryBytes() < 60<<20 || r.exited.GetMemoryScope() == sandboxv1.MemoryScope_MEMORY_SCOPE_UNSPECIFIED {
			t.Errorf("memory: %v", r.exited)
		}
	})
}

func TestTerminal(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		r := shell("stty size; tty >/dev/null && echo tty; echo err >&2; read x; echo got:$x; stty size; cat >/dev/null; echo bye")
		r.Terminal, r.ExecId = &sandboxv1.TerminalSize{Rows: 33, Columns: 101}, "term"
		s, err := h.Execute(testContext(t), r)
		if err != nil {
			t.Fatal(err)
		}
		var seen bytes.Buffer
		resized := false
		got := collect(t, func() (*sandboxv1.ExecuteResponse, error) {
			e, err := s.Recv()
			seen.Write(e.GetOutput().GetData())
			if !resized && strings.Contains(seen.String(), "err") {
				resized = true
				if _, err := h.ResizeTerminal(testContext(t), &sandboxv1.ResizeTerminalRequest{
					ExecId: "term", Size: &sandboxv1.TerminalSize{Rows: 44, Columns: 55}}); err != nil {
					t.Error(err)
				}
				if _, err := h.WriteStdin(testContext(t), &sandboxv1.WriteStdinRequest{
					ExecId: "term", Data: []byte("hello\n")}); err != nil {
					t.Error(err)
				}
				eventually(t, "the command waits for more", func() bool { return len(alive("cat")) > 0 })
				if _, err := h.WriteStdin(testContext(t), &sandboxv1.WriteStdinRequest{
					ExecId: "term", Offset: 6, Eof: true}); err != nil {
					t.Error(err)
				}
			}
			return e, err
		}, 0)
		out := string(got.stdout)
		for _, want := range []string{"33 101", "tty", "err", "got:hello", "44 55", "bye"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in %q", want, out)
			}
		}
		if got.exited.GetExitCode() != 0 || got.exited.GetStdoutBytes() != int64(len(out)) || len(got.stderr) != 0 {
			t.Errorf("ended %v", got.exited)
		}
	})
}

// A filter of the agent's keeps clone3 from commands and their children, as if
// the kernel had none, and keeps nothing else from them.
func TestFilterKeepsOnlyClone3FromCommands(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3 to make system calls")
	}
	const try = `python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call in 435, 435 | 0x40000000, 39:
    ctypes.set_errno(0)
    answer = libc.syscall(call, 0, 0)
    print("own" if answer == os.getpid() else ctypes.get_errno())
'`
	for _, s := range []setup{
		{name: "with a cgroup", cgroup: true, refuse: true},
		{name: "with a subreaper", refuse: true},
		{name: "as uid 1000", refuse: true, uid: 1000},
	} {
		t.Run(s.name, func(t *testing.T) {
			h := start(t, s)
			r := h.run(t, shell(try))
			if r.err != nil || string(r.stdout) != "38\n38\nown\n" {
				t.Errorf("got %q, %q, %v", r.stdout, r.stderr, r.err)
			}
		})
	}
}
