package conformance

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func startedFirstExitedLast(ctx context.Context, t T, s Sandbox) {
	r := s.execute(ctx, t, argv("true"))
	if r.err != nil || r.code() != 0 {
		t.Fatalf("true: %v", r)
	}
	if r.started.GetExecId() == "" || r.started.GetIncarnation() == "" || r.started.GetPid() <= 0 {
		t.Errorf("started: %v", r.started)
	}
}

func cannotStart(ctx context.Context, t T, s Sandbox) {
	r := s.execute(ctx, t, argv("/no/such/program"))
	if c := status.Code(r.err); r.started != nil || c == codes.OK || c == codes.Unknown || c == codes.Internal {
		t.Errorf("a missing program: %v", r)
	}
	r = s.execute(ctx, t, argv())
	if status.Code(r.err) != codes.InvalidArgument {
		t.Errorf("an empty argv: %v", r)
	}
}

func exitCodesAndSignals(ctx context.Context, t T, s Sandbox) {
	for _, c := range []struct {
		script string
		reason sandboxv1.ExitReason
		code   int
		signal string
	}{
		{"exit 0", sandboxv1.ExitReason_EXIT_REASON_EXITED, 0, ""},
		{"exit 3", sandboxv1.ExitReason_EXIT_REASON_EXITED, 3, ""},
		{"exit 255", sandboxv1.ExitReason_EXIT_REASON_EXITED, 255, ""},
		{"kill -TERM $$", sandboxv1.ExitReason_EXIT_REASON_SIGNALED, -1, "SIGTERM"},
		{"kill -KILL $$", sandboxv1.ExitReason_EXIT_REASON_SIGNALED, -1, "SIGKILL"},
	} {
		r := s.sh(ctx, t, c.script)
		if r.exited.GetReason() != c.reason || r.code() != c.code || r.exited.GetSignal() != c.signal {
			t.Errorf("%s: %v", c.script, r.exited)
		}
		if (r.exited.ExitCode != nil) != (c.reason == sandboxv1.ExitReason_EXIT_REASON_EXITED) {
			t.Errorf("%s: exit_code is there or not there: %v", c.script, r.exited)
		}
	}
}

func outputIsBytes(ctx context.Context, t T, s Sandbox) {
	const want = "a\x00b\xff\xfe\r\nno newline"
	if r := s.sh(ctx, t, `printf 'a\000b\377\376\r\nno newline'`); r.stdout != want || r.stderr != "" {
		t.Errorf("got %q and %q", r.stdout, r.stderr)
	}
	const size = 3 << 20
	r := s.sh(ctx, t, "head -c 3145728 /dev/zero")
	if len(r.stdout) != size || r.exited.GetStdoutBytes() != size || strings.Trim(r.stdout, "\x00") != "" {
		t.Errorf("%d bytes came, %d were counted", len(r.stdout), r.exited.GetStdoutBytes())
	}
}

func streamsApart(ctx context.Context, t T, s Sandbox) {
	if r := s.sh(ctx, t, "echo out; echo err >&2; exit 3"); r.stdout != "out\n" || r.stderr != "err\n" || r.code() != 3 {
		t.Errorf("%v; %q, %q, %v", r.exited, r.stdout, r.stderr, r.err)
	}
}

func stdin(ctx context.Context, t T, s Sandbox) {
	req := shell("cat; echo end")
	if r := s.execute(ctx, t, req); r.stdout != "end\n" {
		t.Errorf("without stdin: %v", r)
	}
	req = shell("cat; echo end")
	req.Stdin = []byte("line\x00\n")
	if r := s.execute(ctx, t, req); r.stdout != "line\x00\nend\n" {
		t.Errorf("with stdin: %v", r)
	}
}

func cwdEnvArgv(ctx context.Context, t T, s Sandbox) {
	req := shell(`pwd; echo "$GREETING"`)
	req.Cwd, req.Env = "/tmp", map[string]string{"GREETING": "hello  world"}
	if r := s.execute(ctx, t, req); r.stdout != "/tmp\nhello  world\n" {
		t.Errorf("cwd and env: %v", r)
	}
	if r := s.sh(ctx, t, `echo "[$GREETING]"`); r.stdout != "[]\n" {
		t.Errorf("one command's env reached another: %v", r)
	}
	if r := s.execute(ctx, t, argv("printf", "%s|", "a b", "$HOME", "*")); r.stdout != "a b|$HOME|*|" {
		t.Errorf("argv: %v", r)
	}
	req = shell("true")
	req.Cwd = "/no/such/directory"
	if r := s.execute(ctx, t, req); r.err == nil || r.started != nil {
		t.Errorf("a missing working directory: %v", r)
	}
}

// largeScript is larger than one argument of a process can be.
func largeScript(ctx context.Context, t T, s Sandbox) {
	script := "x='" + strings.Repeat("y", 300<<10) + "'; echo ${#x}"
	if r := s.sh(ctx, t, script); r.stdout != "307200\n" {
		t.Errorf("a script of %d bytes: %q, %q, %v", len(script), r.stdout, r.stderr, r.exited)
	}
}
