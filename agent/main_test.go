package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandgate/sandgate/agent/protocol"
	"github.com/sandgate/sandgate/agent/spawn"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// The test binary is also the agent: a reaper needs a process of its own.
const agentEnv = "SANDGATE_AGENT_TEST_SOCKET"

func TestMain(m *testing.M) {
	if os.Getenv(agentEnv) != "" {
		os.Exit(serveForTest())
	}
	goleak.VerifyTestMain(m)
}

func serveForTest() int {
	if os.Getenv("SANDGATE_AGENT_TEST_REFUSE") != "" {
		if err := spawn.RefuseClone3(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if os.Getenv("SANDGATE_AGENT_TEST_OPEN") == "" {
		if err := restrictForTest(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if os.Getenv("SANDGATE_AGENT_TEST_NOCLONE3") != "" {
		if err := refuseClone3(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	stall, _ := time.ParseDuration(os.Getenv("SANDGATE_AGENT_TEST_STALL"))
	broken, _ := time.ParseDuration(os.Getenv("SANDGATE_AGENT_TEST_BROKEN"))
	a, err := New(Config{
		Cgroup: os.Getenv("SANDGATE_AGENT_TEST_CGROUP"), Incarnation: "first", Workdir: "/",
		Reap: true, StallTimeout: stall, BrokenGrace: broken, StateDir: os.Getenv("SANDGATE_AGENT_TEST_STATE"),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	spawn.SetCloseOnExec()
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
		a.Close()
		os.Exit(0)
	}()
	if err := a.Serve(l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {} // Close ends the process
}

// harness is an agent in its own process, and a client of it.
type harness struct {
	agentv1.AgentServiceClient
	conn   *grpc.ClientConn
	pid    int
	socket string
	cgroup string
}

func start(t testing.TB, s setup) *harness {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if s.uid != 0 {
		if os.Getuid() != 0 {
			t.Skip("needs root to become another user")
		}
		_ = os.Chown(dir, s.uid, s.uid)
	}
	_ = os.Chmod(dir, 0o755)
	h := &harness{socket: filepath.Join(dir, "agent.sock")}
	env := append(os.Environ(), agentEnv+"="+h.socket, "SANDGATE_AGENT_TEST_STATE="+dir,
		"SANDGATE_AGENT_TEST_STALL="+s.stall.String(), "SANDGATE_AGENT_TEST_BROKEN="+s.broken.String())
	if s.cgroup {
		root := cgroupRoot()
		if root == "" {
			t.Skip("no writable cgroup v2 tree")
		}
		h.cgroup = filepath.Join(root, "sandgate-test-"+strconv.Itoa(os.Getpid())+"-"+filepath.Base(dir))
		if err := os.Mkdir(h.cgroup, 0o755); err != nil {
			t.Fatal(err)
		}
		env = append(env, "SANDGATE_AGENT_TEST_CGROUP="+h.cgroup)
	}
	if s.open {
		env = append(env, "SANDGATE_AGENT_TEST_OPEN=1")
	}
	if s.privileges {
		env = append(env, "SANDGATE_AGENT_TEST_PRIVILEGES=1")
	}
	if s.noClone3 {
		env = append(env, "SANDGATE_AGENT_TEST_NOCLONE3=1")
	}
	if s.refuse {
		env = append(env, "SANDGATE_AGENT_TEST_REFUSE=1")
	}
	exe := "/proc/self/exe"
	if s.uid != 0 {
		// The user may be unable to reach the test binary.
		exe = filepath.Join(dir, "agent.test")
		copyFile(t, exe)
	}
	cmd := exec.Command(exe)
	l, err := net.Listen("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	listening, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = env, os.Stderr, []*os.File{listening}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.cgroup && s.uid != 0 {
		// Delegated as by a provider: the agent is in it from the start.
		own := filepath.Join(h.cgroup, "agent")
		if err := os.Mkdir(own, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "agent", "agent/cgroup.procs"} {
			if err := os.Chown(filepath.Join(h.cgroup, name), s.uid, s.uid); err != nil {
				t.Fatal(err)
			}
		}
		at, err := os.Open(own)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = at.Close() }()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(at.Fd())
	}
	if s.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(s.uid), Gid: uint32(s.uid)}
	}
	leash, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	_ = listening.Close()
	h.pid = cmd.Process.Pid
	h.conn, err = grpc.NewClient("unix://"+h.socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(16<<20), grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	h.AgentServiceClient = agentv1.NewAgentServiceClient(h.conn)
	t.Cleanup(func() {
		_ = h.conn.Close()
		_ = leash.Close()
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(15 * time.Second):
			_ = cmd.Process.Signal(syscall.SIGQUIT) // prints its goroutines
			<-done
			t.Error("the agent did not end")
		}
		if h.cgroup != "" {
			_ = os.Remove(filepath.Join(h.cgroup, "agent"))
			if err := os.Remove(h.cgroup); err != nil {
				t.Errorf("cgroups are left: %v", err)
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	hello, err := h.Hello(ctx, &agentv1.HelloRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	want := agentv1.KillMode_KILL_MODE_SUBREAPER
	if s.cgroup {
		want = agentv1.KillMode_KILL_MODE_CGROUP
	}
	if hello.GetKillMode() != want || int(hello.GetUid()) != s.uid {
		t.Fatalf("kill mode %v, uid %d", hello.GetKillMode(), hello.GetUid())
	}
	return h
}

func copyFile(t testing.TB, to string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// alive returns the processes that have a mark in their command line.
func alive(mark string) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(b), mark) {
			found = append(found, pid)
		}
	}
	return found
}

// gate is a named pipe: its reader blocks until open.
type gate string

func newGate(t testing.TB) gate {
	t.Helper()
	dir, err := os.MkdirTemp("", "gate") // not t.TempDir, which other users cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g := gate(filepath.Join(dir, "pipe"))
	if err := errors.Join(os.Chmod(dir, 0o755), unix.Mkfifo(string(g), 0o600), os.Chmod(string(g), 0o644)); err != nil {
		t.Fatal(err)
	}
	return g
}

// open waits for the reader first.
func (g gate) open(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile(string(g), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// eventually waits for a condition that another process makes true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not so: %s", what)
}
