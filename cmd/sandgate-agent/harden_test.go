package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// intruderEnv makes the test binary a command that attacks the agent with the given pid.
const intruderEnv = "SANDGATE_AGENT_TEST_INTRUDER"

// intrude tries every attack on a process of the same user and prints those that
// succeeded.
func intrude(pid int) int {
	runtime.LockOSThread()
	proc := "/proc/" + strconv.Itoa(pid)
	local := make([]byte, 8)
	remote := []unix.RemoteIovec{{Base: 0x400000, Len: 8}}
	vector := []unix.Iovec{{Base: &local[0], Len: 8}}
	ways := []struct {
		name string
		try  func() error
	}{
		{"trace", func() error { return unix.PtraceAttach(pid) }},
		{"seize", func() error { return unix.PtraceSeize(pid) }},
		{"read memory", func() error { _, err := unix.ProcessVMReadv(pid, vector, remote, 0); return err }},
		{"write memory", func() error { _, err := unix.ProcessVMWritev(pid, vector, remote, 0); return err }},
		{"open mem", func() error { return open(proc+"/mem", os.O_RDWR) }},
		{"open environ", func() error { return open(proc+"/environ", os.O_RDONLY) }},
		{"open maps", func() error { return open(proc+"/maps", os.O_RDONLY) }},
		{"list descriptors", func() error { _, err := os.ReadDir(proc + "/fd"); return err }},
		{"shield from the kernel", func() error { return open(proc+"/oom_score_adj", os.O_WRONLY) }},
		{"take a descriptor", func() error {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			_, err = unix.PidfdGetfd(fd, 0, 0)
			return err
		}},
	}
	for _, w := range ways {
		if err := w.try(); err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EFAULT) {
			fmt.Printf("%s: %v\n", w.name, err)
		}
	}
	// Signals that end a Go program by default.
	for _, sig := range []syscall.Signal{
		unix.SIGHUP, unix.SIGQUIT, unix.SIGABRT, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL,
		unix.SIGTRAP, unix.SIGSYS, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM, unix.SIGVTALRM,
		unix.SIGPROF, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGSTKFLT, unix.SIGIO, unix.SIGPWR, unix.SIGWINCH,
	} {
		_ = syscall.Kill(pid, sig)
	}
	return 0
}

func open(name string, flag int) error {
	f, err := os.OpenFile(name, flag, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// A command has the agent's user. It can't trace the agent, read its memory or take its
// descriptors, and no signal but those for a shutdown ends the agent.
func TestCommandsCannotTraceOrSignalTheAgent(t *testing.T) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "agent.test")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s.sock")
	serve := exec.Command(program, "serve", "--listen", "unix://"+socket, "--workdir", "/", "--state-dir", dir)
	serve.Env, serve.Stderr = append(os.Environ(), mainEnv+"=1"), os.Stderr
	serve.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		// Root may trace everything, so neither runs as root here.
		serve.SysProcAttr.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
		for _, name := range []string{dir, program} {
			if err := os.Chmod(name, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(dir, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := agentv1.NewAgentServiceClient(conn)
	run := func(env map[string]string, args ...string) string {
		t.Helper()
		s, err := client.Execute(ctx, &sandboxv1.ExecuteRequest{
			Env: env, Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: args}}}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for {
			e, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return out.String()
			}
			if err != nil {
				t.Fatal(err)
			}
			out.Write(e.GetOutput().GetData())
			if x := e.GetExited(); x != nil && x.GetExitCode() != 0 {
				t.Errorf("%v ended %v", args, x)
			}
		}
	}
	if got := run(map[string]string{intruderEnv: strconv.Itoa(serve.Process.Pid)}, program); got != "" {
		t.Errorf("a command got in:\n%s", got)
	}
	if got := run(nil, "echo", "on"); got != "on\n" {
		t.Errorf("after that: %q", got)
	}
	// The kernel still kills commands first, and they are ordinary programs.
	if got := run(nil, "cat", "/proc/self/oom_score_adj"); strings.TrimSpace(got) != "500" {
		t.Errorf("oom_score_adj of a command is %q", got)
	}
	if got := run(nil, "sh", "-c", "cat /proc/$$/environ >/dev/null && echo readable"); got != "readable\n" {
		t.Errorf("a command cannot look at its own: %q", got)
	}
	_ = serve.Process.Signal(syscall.SIGTERM)
	if err := serve.Wait(); err != nil {
		t.Errorf("serve ended with %v", err)
	}
}
