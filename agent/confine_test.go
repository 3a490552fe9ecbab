package agent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/agent/landlock"
	"github.com/sandgate/sandgate/agent/process"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// policies is the context of a call that must pass them.
func policies(all ...*sandboxv1.AccessPolicy) *agentv1.CallContext {
	return &agentv1.CallContext{Confinement: &agentv1.Confinement{Policies: all}}
}

func needsLandlock(t *testing.T) {
	t.Helper()
	if !landlock.Scopes() {
		t.Skip("the kernel's Landlock cannot hold signals to a domain")
	}
}

// A command cannot leave its cgroup: it dies with all its descendants.
func TestNoWayOutOfTheCgroup(t *testing.T) {
	needsLandlock(t)
	moved := asLocal
	moved.name, moved.refuse, moved.noClone3 = "moved to the cgroup", false, true
	for _, s := range []setup{asLocal, moved} {
		t.Run(s.name, func(t *testing.T) { noWayOut(t, start(t, s)) })
	}
}

func noWayOut(t *testing.T, h *harness) {
	mark := newMark()
	r := argv("python3", "-c", fmt.Sprintf(`
import os, sys
top = %q
def attempt(what, f):
    try: f(); print(what, "done")
    except OSError as e: print(what, e.strerror)
def move(to): open(to + "/cgroup.procs", "w").write(str(os.getpid()))
if os.fork() == 0:
    os.setsid()
    attempt("make", lambda: os.mkdir(top + "/beside"))
    attempt("new", lambda: move(top + "/beside"))
    attempt("agent's", lambda: move(top + "/agent"))
    for d in os.listdir(top):
        if d.startswith("cmd-"): attempt("other", lambda: move(top + "/" + d))
    attempt("control", lambda: open(top + "/cgroup.subtree_control", "w").write("+pids"))
    sys.stdout.flush()
os.execv("/bin/sleep", ["sleep", "3600.%s"])
`, h.cgroup, mark))
	r.Timeout = durationpb.New(3 * time.Second)
	got := h.run(t, r)
	if got.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
		t.Errorf("ended %v, %v", got.exited, got.err)
	}
	if strings.Contains(string(got.all), "done") || strings.Count(string(got.all), "\n") < 5 {
		t.Errorf("a command wrote to cgroups: %s", got.all)
	}
	eventually(t, "every process is dead", func() bool { return len(alive("3600."+mark)) == 0 })
}

// Commands cannot signal the agent, by no thread of it, and not connect to its
// abstract sockets. Among themselves they can do both.
func TestCommandsAreKeptFromTheAgent(t *testing.T) {
	needsLandlock(t)
	for _, s := range []setup{asLocal, {name: "subreaper", uid: 1000}} {
		t.Run(s.name, func(t *testing.T) {
			h := start(t, s)
			name := "@sandgate-test-" + newMark()
			l, err := net.Listen("unix", name)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			script := fmt.Sprintf(`
import os, signal, socket, ctypes
agent, name = %d, "\0" + %q
def attempt(what, f):
    try: f(); print(what, "done")
    except OSError as e: print(what, e.strerror)
for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, 0):
    attempt("signal", lambda: os.kill(agent, sig))
attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect(name))
libc = ctypes.CDLL(None)
for tid in map(int, os.listdir("/proc/%%d/task" %% agent)):
    libc.syscall(234, agent, tid, int(signal.SIGTERM))
    libc.syscall(234, agent, tid, int(signal.SIGSEGV))
print("over")
`, h.pid, name[1:])
			got := h.run(t, argv("python3", "-c", script))
			if want := strings.Repeat("signal Operation not permitted\n", 5) + "connect Operation not permitted\nover\n"; string(got.stdout) != want {
				t.Errorf("%s%s, want %s", got.stdout, got.stderr, want)
			}
			first := shell("trap 'echo told; exit 5' TERM; echo $$; while :; do sleep 0.01; done")
			first.ExecId, first.Detach = "first", true
			stream, err := h.Execute(testContext(t), first)
			if err != nil {
				t.Fatal(err)
			}
			started, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the first one has set its trap", func() bool {
				list, err := h.ListProcesses(testContext(t), &sandboxv1.ListProcessesRequest{})
				return err == nil && len(list.GetProcesses()) == 1 && list.GetProcesses()[0].GetPosition() > 0
			})
			if got := h.run(t, shell(fmt.Sprintf("kill -TERM %d", started.GetStarted().GetPid()))); got.exited.GetExitCode() != 0 {
				t.Errorf("one command cannot signal another: %s", got.all)
			}
			if got := h.attach(t, "first", 0, sandboxv1.FollowUntil_FOLLOW_UNTIL_LEADER_EXIT); got.exited.GetExitCode() != 5 {
				t.Errorf("ended %v", got.exited)
			}
		})
	}
}

// What developers do in a sandbox works as without a domain.
func TestDevelopersToolsWorkInALandlockDomain(t *testing.T) {
	h := start(t, asLocal)
	dir, err := os.MkdirTemp("", "tools")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chown(dir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"files":   "mkdir a b; echo x > a/f; mv a/f b/g; ln b/g a/h; ln -s b l; mkfifo p; : > a/h; truncate -s 3 b/g; rm -r a; chmod 600 b/g; test -f b/g",
		"devices": "echo x > /dev/null; : > /dev/stdout; cat /dev/null; head -c 4 /dev/urandom > r; echo 700 > /proc/self/oom_score_adj",
		"git":     "git init -q r; cd r; git config user.email a@b; git config user.name a; echo x > f; git add f; git commit -qm m; git clone -q . ../c; cd ../c; git log --oneline | grep -q m",
		"make":    "printf 'int main(){return 0;}' > m.c; printf 'm: m.c\\n\\tgcc -o m m.c\\n' > Makefile; make -s m; ./m",
		"gdb":     "gdb -q -batch -ex run -ex quit /bin/true | grep -q 'exited normally'",
		"signals": "sleep 3600 & kill -STOP $!; kill -CONT $!; kill $!; wait $! || test $? = 143",
		"python":  "python3 -c 'import subprocess, multiprocessing as m, tempfile; p = m.get_context(\"fork\").Pool(2); print(sum(p.map(abs, range(9)))); p.close(); p.join(); tempfile.TemporaryFile().write(b\"x\"); subprocess.run([\"true\"], check=True)'",
	} {
		t.Run(name, func(t *testing.T) {
			r := shell("set -e; " + script)
			if r.Cwd = filepath.Join(dir, name); os.Mkdir(r.GetCwd(), 0o777) != nil || os.Chown(r.GetCwd(), 1000, 1000) != nil {
				t.Fatal("no directory")
			}
			r.Env = map[string]string{"HOME": r.GetCwd(), "PATH": "/usr/bin:/bin"}
			if got := h.run(t, r); got.exited.GetExitCode() != 0 || got.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
				t.Errorf("ended %v, %v: %s", got.exited, got.err, got.all)
			}
		})
	}
}

// Write prefixes bind what commands write, and not what they read.
func TestWritePrefixesBindCommands(t *testing.T) {
	for _, s := range []setup{asLocal, {name: "subreaper"}, {name: "subreaper without a domain", open: true}} {
		t.Run(s.name, func(t *testing.T) {
			h := start(t, s)
			dir, err := os.MkdirTemp("", "prefix")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			for _, sub := range []string{"", "in", "in/a", "out", "fixed", "fixed/free", "fixed/held"} {
				path := filepath.Join(dir, sub)
				if err := os.MkdirAll(path, 0o755); err != nil {
					t.Fatal(err)
				}
				if s.uid != 0 && sub != "fixed" {
					err = os.Chown(path, s.uid, s.uid)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink(filepath.Join(dir, "out"), filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			policy := func(allow, deny []string) *sandboxv1.AccessPolicy {
				p := &sandboxv1.AccessPolicy{}
				for _, a := range allow {
					p.WriteAllowPrefixes = append(p.WriteAllowPrefixes, filepath.Join(dir, a))
				}
				for _, d := range deny {
					p.WriteDenyPrefixes = append(p.WriteDenyPrefixes, filepath.Join(dir, d))
				}
				return p
			}
			in := policy([]string{"in", "gone", "link"}, nil)
			for _, tt := range []struct {
				script   string
				policies []*sandboxv1.AccessPolicy
				ok       bool
			}{
				{"echo x > in/f && mv in/f in/a/f && rm in/a/f", []*sandboxv1.AccessPolicy{in}, true},
				{"echo x > /dev/null && cat /etc/passwd >/dev/null && (echo y >/dev/stderr) 2>&1", []*sandboxv1.AccessPolicy{in}, true},
				{"echo x > out/f", []*sandboxv1.AccessPolicy{in}, false},
				{"echo x > link/f", []*sandboxv1.AccessPolicy{in}, false},
				{"mkdir gone", []*sandboxv1.AccessPolicy{in}, false},
				{"sh -c 'setsid sh -c \"echo x > out/f\"'", []*sandboxv1.AccessPolicy{in}, false},
				{"ln -s ../out in/l 2>/dev/null; echo x > in/l/f", []*sandboxv1.AccessPolicy{in}, false},
				{"echo x > /tmp/prefix-" + newMark(), []*sandboxv1.AccessPolicy{in}, false},
				{"echo x > in/a/f", []*sandboxv1.AccessPolicy{in, policy([]string{"in/a", "out"}, nil)}, true},
				{"echo x > in/f", []*sandboxv1.AccessPolicy{in, policy([]string{"in/a", "out"}, nil)}, false},
				{"echo x > out/f", []*sandboxv1.AccessPolicy{policy(nil, []string{"in"})}, true},
				{"echo x > out/g", nil, true},
			} {
				r := argv("sh", "-c", tt.script)
				r.Cwd = dir
				got := h.runWith(t, r, policies(tt.policies...))
				if ok := got.exited.GetExitCode() == 0; ok != tt.ok || got.exited == nil {
					t.Errorf("%s: ended %v, %v: %s", tt.script, got.exited, got.err, got.all)
				}
			}
			// What lies in a directory of others can be denied alone.
			if s.uid == 0 {
				return
			}
			fixed := []*sandboxv1.AccessPolicy{policy([]string{"fixed"}, []string{"fixed/held"})}
			for script, code := range map[string]int32{"echo x > fixed/free/f": 0, "echo x > fixed/held/f": 1} {
				r := argv("bash", "-c", script)
				r.Cwd = dir
				if got := h.runWith(t, r, policies(fixed...)); got.exited.GetExitCode() != code || got.exited.GetMessage() != "" {
					t.Errorf("%s: ended %v: %s", script, got.exited, got.all)
				}
			}
			// In one's own directory new files could not be made any more.
			r := argv("sh", "-c", "echo x > in/new")
			r.Cwd = dir
			got := h.runWith(t, r, policies(policy([]string{"in"}, []string{"in/a"})))
			if got.exited.GetExitCode() != 0 || !strings.Contains(got.exited.GetMessage(), "write_deny_prefixes") {
				t.Errorf("ended %v: %s", got.exited, got.all)
			}
		})
	}
}

// Where programs may gain privileges, as by sudo, they keep that: there is no
// domain.
func TestNoDomainWherePrivilegesMayBeGained(t *testing.T) {
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || set != 0 {
		t.Skip("programs cannot gain privileges here")
	}
	needsLandlock(t)
	h := start(t, setup{name: "uid 1000", uid: 1000, privileges: true})
	if got := h.run(t, shell("grep -q 'NoNewPrivs:\t0' /proc/self/status")); got.exited.GetExitCode() != 0 {
		t.Errorf("ended %v: %s", got.exited, got.all)
	}
	hello, err := h.Hello(testContext(t), &agentv1.HelloRequest{})
	if err != nil || slices.Contains(hello.GetCapabilities(), process.DomainCapability) {
		t.Errorf("%v, %v", hello, err)
	}
}
