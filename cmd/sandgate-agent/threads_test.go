package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A sandbox whose processes are all in use doesn't end: the agent has the threads that
// it needs. The limit here is RLIMIT_NPROC, which refuses every new process and thread
// of the agent at once; a cgroup's limit that a fork bomb holds full does the same.
func TestAgentOutlivesItsLimit(t *testing.T) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program, socket := filepath.Join(dir, "agent.test"), filepath.Join(dir, "s.sock")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(program, "serve", "--listen", "unix://"+socket, "--workdir", "/", "--state-dir", dir)
	var said bytes.Buffer
	serve.Env, serve.Stderr = append(os.Environ(), mainEnv+"=1"), &said
	serve.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		// The limit doesn't hold for root.
		serve.SysProcAttr.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, 1000, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	dial := func() agentv1.AgentServiceClient {
		conn, err := grpc.NewClient("unix://"+socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return agentv1.NewAgentServiceClient(conn)
	}
	client := dial()
	if got, err := output(t, client, "echo on", grpc.WaitForReady(true)); err != nil || got != "on\n" {
		t.Fatalf("%q, %v", got, err)
	}

	limitProcesses(t, serve, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	block := bytes.Repeat([]byte("x"), 1<<20)
	for i := range 8 {
		one := dial() // a connection is two more goroutines in system calls
		for j := range 8 {
			name := filepath.Join(dir, fmt.Sprint(i, "-", j))
			wg.Go(func() {
				for range 4 {
					if _, err := one.WriteFile(ctx, &sandboxv1.WriteFileRequest{Path: name, Content: block}); err != nil {
						t.Errorf("write: %v", err)
						return
					}
					if _, err := one.StatFile(ctx, &sandboxv1.StatFileRequest{Path: name}); err != nil {
						t.Errorf("stat: %v", err)
						return
					}
					_, err := output(t, one, "true")
					if status.Code(err) != codes.ResourceExhausted {
						t.Errorf("a command without a process: %v", err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if t.Failed() {
		select {
		case err := <-ended:
			t.Fatalf("the agent ended: %v\n%s", err, said.String()[:min(said.Len(), 2000)])
		case <-ctx.Done():
			t.FailNow()
		}
	}
	limitProcesses(t, serve, unix.RLIM_INFINITY)
	if got, err := output(t, client, "echo on"); err != nil || got != "on\n" {
		t.Errorf("after that: %q, %v", got, err)
	}
	_ = serve.Process.Signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("serve ended with %v", err)
	}
}

// limitEnv makes the test binary set a limit of processes: "PID LIMIT".
const limitEnv = "SANDGATE_AGENT_TEST_LIMIT"

// setLimit sets the soft limit of another process of this user. Root needs a capability
// for that and its user does not.
func setLimit(text string) error {
	var pid int
	var limit, now unix.Rlimit
	if _, err := fmt.Sscan(text, &pid, &limit.Cur); err != nil {
		return err
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &now); err != nil {
		return err
	}
	limit.Cur, limit.Max = min(limit.Cur, now.Max), now.Max
	return unix.Prlimit(pid, unix.RLIMIT_NPROC, &limit, nil)
}

func limitProcesses(t *testing.T, serve *exec.Cmd, limit uint64) {
	t.Helper()
	cmd := exec.Command(serve.Path)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", limitEnv, serve.Process.Pid, limit))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: serve.SysProcAttr.Credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
