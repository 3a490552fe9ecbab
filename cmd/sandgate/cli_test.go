package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// play is what the commands of these tests do, by their first word.
func play(r *fake.Run) {
	line := r.Request.GetShell() + strings.Join(r.Request.GetArgv().GetArgs(), " ")
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "both":
		r.Stdout("out\n")
		r.Stderr("err\n")
		r.Exit(3)
	case "echo":
		r.Stdout(rest + "\n")
	case "cat":
		r.Stdout(r.Stdin())
	case "env":
		r.Stdout(r.Request.GetEnv()[rest])
	case "grace":
		r.Stdout(r.Request.GetDisconnectGrace().AsDuration().String())
	case "where":
		r.Stdout(r.Request.GetCwd())
	case "slow":
		r.End(&sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT, Signal: "SIGKILL"})
	case "crash":
		r.End(&sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_SIGNALED, Signal: "SIGSEGV"})
	case "hog":
		r.End(&sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, Signal: "SIGKILL"})
	case "lost":
		r.End(&sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_LOST})
	case "binary":
		r.Stdout("\xff\x00")
	case "wait":
		r.Stdout("waiting\n")
		<-r.Killed
	}
}

// ran is what one run of the program left.
type ran struct {
	code           int
	stdout, stderr string
}

// run runs the program against a server.
func run(ctx context.Context, server *fake.Server, stdin string, args ...string) ran {
	var stdout, stderr bytes.Buffer
	c := &cli{stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr, dial: server.DialOptions()}
	code := c.run(ctx, append([]string{"--address", "127.0.0.1:1"}, args...))
	return ran{code, stdout.String(), stderr.String()}
}

// must runs the program and wants it to succeed.
func must(t *testing.T, server *fake.Server, args ...string) string {
	t.Helper()
	r := run(t.Context(), server, "", args...)
	if r.code != 0 {
		t.Fatalf("sandgate %v: %d, %s", args, r.code, r.stderr)
	}
	return r.stdout
}

func TestCommands(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	must(t, server, "create", "box", "--label", "team=x")
	t.Setenv("SANDGATE_TEST", "from outside")
	tests := []struct {
		name   string
		args   string
		stdin  string
		code   int
		stdout string
		stderr string // contained
		lines  int    // on stderr, for code 125; 0: one
	}{
		{name: "both streams and a code", args: "exec box -- both", code: 3, stdout: "out\n", stderr: "err\n"},
		{name: "a shell command", args: "exec box -c|echo hello", stdout: "hello\n"},
		{name: "flags of the command", args: "exec box -- echo -i --timeout", stdout: "-i --timeout\n"},
		{name: "input", args: "exec -i box -- cat", stdin: "input", stdout: "input"},
		{name: "no input unless asked", args: "exec box -- cat", stdin: "input"},
		{name: "environment", args: "exec -e A=b=c box -- env A", stdout: "b=c"},
		{name: "environment from outside", args: "exec -e SANDGATE_TEST box -- env SANDGATE_TEST", stdout: "from outside"},
		{name: "grace", args: "exec --grace 5s box -- grace", stdout: "5s"},
		{name: "default grace", args: "exec box -- grace", stdout: "1m0s"},
		{name: "no grace", args: "exec --grace 0s box -- grace", stdout: "0s"},
		{name: "directory", args: "exec --cwd /tmp box -- where", stdout: "/tmp"},
		{name: "timeout", args: "exec box -- slow", code: 124, stderr: "TIMED_OUT"},
		{name: "signal", args: "exec box -- crash", code: 139},
		{name: "memory", args: "exec box -- hog", code: 137, stderr: "OUT_OF_MEMORY"},
		{name: "lost", args: "exec box -- lost", code: 125, stderr: "(LOST)"},
		{name: "missing program", args: "exec box -- missing", code: 125, stderr: "COMMAND_NOT_FOUND"},
		{name: "unknown sandbox", args: "exec none -- echo", code: 125, stderr: `sandgate: there is no sandbox "none" (SANDBOX_NOT_FOUND); list them with: sandgate ls`},
		{name: "no command", args: "exec box", code: 125, stderr: "sandgate: there is no command"},
		{name: "two commands", args: "exec -c echo box -- echo", code: 125, stderr: "there are two commands"},
		{name: "no id", args: "exec -- echo", code: 125, stderr: "id goes before --"},
		{name: "bad environment", args: "exec -e =x box -- echo", code: 125, stderr: "KEY=VALUE"},
		{name: "unknown flag", args: "exec --speed 9 box -- echo", code: 125, stderr: "unknown flag: --speed; see: sandgate exec --help"},
		{name: "unknown command", args: "explode", code: 125, stderr: "unknown command \"explode\"; see: sandgate --help"},
		{name: "mistyped command", args: "exce", code: 125, stderr: "unknown command \"exce\"; did you mean exec?"},
		{name: "errors as JSON", args: "-o json rm none neither", code: 125, stdout: "{\n  \"deletedSandboxIds\": []\n}\n", stderr: `{"error":{"code":"NotFound","message":"there is no sandbox \"none\"`, lines: 2},
		{name: "error as JSON", args: "-o json exec none -- echo", code: 125, stderr: `"reason":"SANDBOX_NOT_FOUND"`},
		{name: "bad output", args: "ls --output yaml", code: 125, stderr: "text or json"},
		{name: "ids", args: "ls -q", stdout: "box\n"},
		{name: "no such label", args: "ls -q --label team=y"},
		{name: "bad state", args: "ls --state happy", code: 125, stderr: "not \"happy\""},
		{name: "bad size", args: "create --memory much", code: 125, stderr: "--memory is a size"},
		{name: "bad network", args: "create --network some", code: 125, stderr: "none, proxy or full"},
		{name: "bad scope", args: "kill --scope all box x", code: 125, stderr: "leader, group or tree"},
		{name: "unknown exec", args: "logs box none", code: 125, stderr: "EXEC_NOT_FOUND"},
		{name: "another spec", args: "create box --template other", code: 125, stderr: "SANDBOX_SPEC_DIFFERS"},
		{name: "removing what is not there", args: "rm none", code: 125, stderr: "SANDBOX_NOT_FOUND"},
		{name: "removing two that are not there", args: "rm none neither", code: 125, stderr: "\"neither\" (SANDBOX_NOT_FOUND)", lines: 2},
		{name: "removing it by force", args: "rm --force none"},
		{name: "removing nothing", args: "rm", code: 125, stderr: "give ids, or --all"},
		{name: "unconfirmed", args: "rm --all", stdin: "no\n", code: 125, stderr: "nothing was deleted"},
		{name: "suspending nothing", args: "suspend", code: 125, stderr: "sandgate: give ids; see: sandgate suspend --help"},
		{name: "suspending what is not there", args: "suspend none neither", code: 125, stderr: "\"neither\" (SANDBOX_NOT_FOUND)", lines: 2},
		{name: "copy without a sandbox", args: "cp a b", code: 125, stderr: "one side"},
		{name: "copy between sandboxes", args: "cp box:/a box:/b", code: 125, stderr: "only one"},
		{name: "relative copy", args: "cp box:a -", code: 125, stderr: "must be absolute"},
		{name: "SSH for nobody", args: "ssh-server", code: 125, stderr: "nobody can log in"},
		{name: "SSH without a key of its own", args: "ssh-server --tokens --host-key /proc/none/key", code: 125, stderr: "make the host key"},
		{name: "SSH with missing keys", args: "ssh-server --authorized-keys /none --host-key HOSTKEY", code: 125, stderr: "authorized keys: "},
		{name: "copy of nothing", args: "cp box:/none -", code: 125, stderr: "FILE_NOT_FOUND"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll(tt.args, "HOSTKEY", filepath.Join(t.TempDir(), "key")))
			if before, shell, ok := strings.Cut(tt.args, "|"); ok {
				args = append(strings.Fields(before), shell)
			}
			got := run(t.Context(), server, tt.stdin, args...)
			if got.code != tt.code || got.stdout != tt.stdout {
				t.Errorf("got %d, %q, stderr %q", got.code, got.stdout, got.stderr)
			}
			if !strings.Contains(got.stderr, tt.stderr) || tt.stderr == "" && got.stderr != "" {
				t.Errorf("stderr %q", got.stderr)
			}
			if message := got.stderr[strings.LastIndex(got.stderr, ": sandgate: ")+1:]; tt.code == failed && strings.Count(message, "\n") != max(tt.lines, 1) {
				t.Errorf("stderr is not one line: %q", got.stderr)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	must(t, server, "create", "box")
	must(t, server, "create", "other")
	must(t, server, "exec", "--exec-id", "one", "box", "--", "echo")
	for args, want := range map[string]string{
		"exec b": "box\n:4\n", "attach box ": "one\n:4\n", "rm box ": "other\n:4\n", "exec box ": ":4\n", "kill --scope ": "leader\ngroup\ntree\n:4\n",
		"create --template ": "default\n:4\n",
	} {
		got := run(t.Context(), server, "", append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if got.code != 0 || got.stdout != want {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestDetachedCommand(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	must(t, server, "create", "box")
	exec := strings.TrimSpace(must(t, server, "exec", "--detach", "box", "--", "wait"))
	if got := must(t, server, "ps", "box"); !strings.Contains(got, exec) || !strings.Contains(got, "running, detached") {
		t.Errorf("ps: %q", got)
	}
	deadline := time.Now().Add(10 * time.Second)
	for must(t, server, "logs", "box", exec) != "waiting\n" {
		if time.Now().After(deadline) {
			t.Fatal("logs never had the output")
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { cancel(signalled{syscall.SIGINT}) }()
	if got := run(ctx, server, "", "attach", "box", exec); got.code != 130 {
		t.Errorf("interrupted attach: %+v", got)
	}
	if signals := server.Run("box", exec).Signals(); len(signals) != 0 {
		t.Errorf("attach sent %v", signals)
	}
	must(t, server, "kill", "--signal", "term", "--scope", "leader", "box", exec)
	must(t, server, "kill", "box", exec)
	if got := server.Run("box", exec).Signals(); strings.Join(got, ",") != "TERM LEADER,KILL TREE" {
		t.Errorf("signals %v", got)
	}
	if got := run(t.Context(), server, "", "attach", "box", exec); got.code != 137 || got.stdout != "waiting\n" {
		t.Errorf("attach: %+v", got)
	}
	if got := run(t.Context(), server, "", "logs", "--follow", "box", exec); got.code != 0 || got.stdout != "waiting\n" {
		t.Errorf("logs --follow: %+v", got)
	}
	if got := run(t.Context(), server, "", "kill", "box", exec); got.code != 0 || !strings.Contains(got.stderr, "no process left") {
		t.Errorf("kill after the end: %+v", got)
	}
	if got := must(t, server, "ps", "--all", "box"); !strings.Contains(got, "killed (137)") {
		t.Errorf("ps: %q", got)
	}
}

func TestJSON(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	parse := func(args ...string) map[string]any {
		t.Helper()
		got := run(t.Context(), server, "", append(args, "--output", "json")...)
		m := map[string]any{}
		if err := json.Unmarshal([]byte(got.stdout), &m); err != nil {
			t.Fatalf("%v: %v in %q, %q", args, err, got.stdout, got.stderr)
		}
		return m
	}
	if m := parse("create", "box"); m["created"] != true || m["sandbox"].(map[string]any)["sandboxId"] != "box" {
		t.Errorf("create: %v", m)
	}
	if m := parse("exec", "box", "-c", "both"); m["stdout"] != "out\n" || m["stderr"] != "err\n" || m["exited"].(map[string]any)["exitCode"] != 3.0 {
		t.Errorf("exec: %v", m)
	}
	if m := parse("exec", "box", "-c", "binary"); m["stdoutBase64"] != "/wA=" || m["stdout"] != nil {
		t.Errorf("exec: %v", m)
	}
	if m := parse("ls"); len(m["sandboxes"].([]any)) != 1 {
		t.Errorf("ls: %v", m)
	}
	if m := parse("ps", "--all", "box"); len(m["processes"].([]any)) != 2 {
		t.Errorf("ps: %v", m)
	}
	if m := parse("info"); m["provider"] != "fake" {
		t.Errorf("info: %v", m)
	}
	if m := parse("info", "box"); m["sandboxId"] != "box" {
		t.Errorf("info: %v", m)
	}
	if m := parse("rm", "box"); len(m["deletedSandboxIds"].([]any)) != 1 {
		t.Errorf("rm: %v", m)
	}
	if m := parse("version"); m["version"] != version {
		t.Errorf("version: %v", m)
	}
}

func TestFailuresOfTheServer(t *testing.T) {
	server := fake.Start(t, &fake.Server{Token: "secret"})
	if got := run(t.Context(), server, "", "ls"); got.code != failed || !strings.Contains(got.stderr, "CREDENTIALS_INVALID") || !strings.Contains(got.stderr, "SANDGATE_TOKEN") {
		t.Errorf("no token: %+v", got)
	}
	must(t, server, "--token", "secret", "ls")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, server, "--token-file", file, "ls")
	if got := run(t.Context(), server, "", "--token-file", file, "--token", "secret", "ls"); got.code != failed || !strings.Contains(got.stderr, "set one of them") {
		t.Errorf("two tokens: %+v", got)
	}
	if got := run(t.Context(), server, "", "--token-file", file+"-not", "ls"); got.code != failed || !strings.Contains(got.stderr, file+"-not cannot be used: no such file or directory; give a valid token") {
		t.Errorf("no token file: %+v", got)
	}

	broken := fake.Start(t, &fake.Server{Fail: func(string) error { return fake.Error(codes.Internal, "INTERNAL", "something\nbroke") }})
	if got := run(t.Context(), broken, "", "ls"); got.code != failed || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, "request id") {
		t.Errorf("internal: %+v", got)
	}

	var stderr bytes.Buffer
	c := &cli{stdin: strings.NewReader(""), stdout: &stderr, stderr: &stderr}
	code := c.run(t.Context(), []string{"--address", "unix:///nonexistent/s.sock", "ls"})
	if code != failed || !strings.Contains(stderr.String(), "sandgate serve") {
		t.Errorf("no server: %d, %s", code, stderr.String())
	}
}

// What a sandbox says of itself must not steer the terminal.
func TestNamesInASandboxDoNotSteerTheTerminal(t *testing.T) {
	var stderr bytes.Buffer
	(&cli{stderr: &stderr}).notice("%s", "a\x1b[31m\nb")
	if got := stderr.String(); got != "sandgate: a?[31m b\n" {
		t.Errorf("said %q", got)
	}
}

func TestParseSize(t *testing.T) {
	cmd := (&cli{}).versionCommand()
	for text, want := range map[string]int64{"1": 1, "1k": 1024, "512MiB": 512 << 20, "512M": 512 << 20, "1.5Gi": 3 << 29, "2 GB": 2 << 30, "": 0} {
		if got, err := parseSize(cmd, "memory", text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1", "0", "x", "1X", "MiB", "1MM", "1e30G"} {
		if got, err := parseSize(cmd, "memory", text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// Every command says what it is for and shows how.
func TestEveryCommandHasHelpAndAnExample(t *testing.T) {
	c := &cli{}
	for _, cmd := range c.command().Commands() {
		if cmd.Name() != "serve" && cmd.Short == "" || cmd.GroupID != "" && cmd.Example == "" {
			t.Errorf("%s has no short text or no example", cmd.Name())
		}
	}
}

// A server whose log is JSON has logged its end: nothing else is printed.
func TestServeFailureInAJSONLog(t *testing.T) {
	got := run(t.Context(), nil, "", "serve", "--log-format", "json", "--state-dir", t.TempDir(), "--provider", "nowhere")
	if got.code != failed || strings.Count(got.stderr, "\n") != 1 || !strings.HasPrefix(got.stderr, "{") {
		t.Errorf("%+v", got)
	}
	got = run(t.Context(), nil, "", "serve", "--state-dir", t.TempDir(), "--provider", "nowhere")
	if got.code != failed || !strings.HasPrefix(got.stderr, "sandgate: provider (--provider): ") {
		t.Errorf("%+v", got)
	}
}

// Calls belong to the trace that the environment names, if gRPC can carry it.
func TestTraceOfTheEnvironment(t *testing.T) {
	for _, c := range []struct{ given, want string }{{"00-a-b-01", "00-a-b-01"}, {"", ""}, {"a\nb", ""}, {"ä", ""}} {
		t.Setenv("TRACEPARENT", c.given)
		var got string
		server := fake.Start(t, &fake.Server{Play: play, Seen: func(_ string, md metadata.MD) {
			got = strings.Join(md.Get("traceparent"), " ")
		}})
		must(t, server, "ls")
		if got != c.want {
			t.Errorf("%q: %q", c.given, got)
		}
	}
}
