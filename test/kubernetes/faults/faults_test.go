// Package faults kills what a stream to a pod goes through, one thing after the
// other, while a command writes, and compares what arrived. It has the cluster
// for itself: "make test-kubernetes" runs it after the other tests, on the
// cluster of "make cluster-up" only.
package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	// lines is how many the command writes, one every twentieth of a second.
	lines = 250
	// away is how long a component is missing.
	away = 8 * time.Second
	// bound is how long the loss of a pod may take to be told.
	bound = 30 * time.Second
)

// rig is two servers on one cluster behind one address, and a client.
type rig struct {
	t         *testing.T
	cluster   string
	api       *kubernetes.Clientset
	namespace string
	servers   [2]*server
	front     *front
	client    *sandgate.Client
}

type server struct {
	address string
	cmd     *exec.Cmd
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cluster, kubeconfig := os.Getenv("SANDGATE_CLUSTER"), os.Getenv("KUBECONFIG")
	if cluster == "" || kubeconfig == "" {
		t.Skip("needs a cluster whose parts may be killed: run make test-kubernetes without KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cluster: cluster}
	if r.api, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	made, err := r.api.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{GenerateName: "faults-"}}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.namespace = made.Name
	t.Cleanup(func() {
		if err := r.api.CoreV1().Namespaces().Delete(context.Background(), r.namespace, meta.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	r.front = newFront(t)
	for i := range r.servers {
		r.servers[i] = r.serve(i)
	}
	r.front.to(r.servers[0].address)
	if r.client, err = sandgate.NewClient(t.Context(), sandgate.WithAddress(r.front.address), sandgate.WithPatience(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() })
	return r
}

// serve starts one server. Each has a state directory of its own: what the
// servers share is in the cluster.
func (r *rig) serve(i int) *server {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-faults-")
	if err != nil {
		r.t.Fatal(err)
	}
	s := &server{address: filepath.Join(dir, "s.sock")}
	s.cmd = exec.Command(program(), "serve", "--listen", "unix://"+s.address, "--state-dir", dir, "--provider", "kubernetes",
		"--kubernetes-namespace", r.namespace, "--kubernetes-image", "docker.io/sandgate/busybox:test",
		"--kubernetes-agent-image", "docker.io/sandgate/agent:test")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && r.t.Failed() {
			r.t.Logf("server %d: %s", i, text)
		}
		_ = os.RemoveAll(dir)
	})
	r.eventually(30*time.Second, "the server listens", func() bool {
		conn, err := net.Dial("unix", s.address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return s
}

func program() string {
	if path := os.Getenv("SANDGATE_BIN"); path != "" {
		return path
	}
	path, _ := filepath.Abs("../../../bin/sandgate")
	return path
}

func (r *rig) eventually(within time.Duration, what string, done func() bool) {
	r.t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// component runs a command of the cluster's own.
func (r *rig) component(verb, name string) {
	r.t.Helper()
	if out, err := exec.Command(r.cluster, verb, name).CombinedOutput(); err != nil {
		r.t.Fatalf("cluster %s %s: %v: %s", verb, name, err, out)
	}
}

// create makes a sandbox that goes with the test.
func (r *rig) create(t *testing.T) *sandgate.Sandbox {
	t.Helper()
	sb, _, err := r.client.Create(t.Context(), sandgate.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := sb.Delete(ctx); err != nil && !errors.Is(err, sandgate.ErrSandboxNotFound) {
			t.Error(err)
		}
	})
	return sb
}

// stream is a command that writes numbered lines to both streams in turn.
func stream(t *testing.T, sb *sandgate.Sandbox) *sandgate.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), sandgate.ExecuteRequest{
		Shell: fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "line $i of the stream"; i=$((i+1)); sleep 0.05; done; exit 7`, lines),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wanted() string {
	var all strings.Builder
	for i := range lines {
		fmt.Fprintf(&all, "line %d of the stream\n", i)
	}
	return all.String()
}

// TestStreamsGoOn kills everything between a caller and a running command.
func TestStreamsGoOn(t *testing.T) {
	r := newRig(t)
	missing := func(name string) func(*testing.T, *sandgate.Sandbox) {
		return func(t *testing.T, _ *sandgate.Sandbox) {
			r.component("kill", name)
			time.Sleep(away) // the fault itself, not a wait for something
			r.component("start", name)
		}
	}
	for _, tt := range []struct {
		name  string
		fault func(*testing.T, *sandgate.Sandbox)
	}{
		{"connect in the pod", func(t *testing.T, sb *sandgate.Sandbox) {
			// The command reaches it: both are the sandbox's user.
			_, err := sb.Execute(t.Context(), sandgate.ExecuteRequest{
				Shell:  `for d in /proc/[0-9]*; do if tr '\0' ' ' <$d/cmdline 2>/dev/null | grep -q 'sandgate-agent connect'; then kill -9 ${d#/proc/}; fi; done`,
				Detach: true,
			})
			if err != nil {
				t.Log(err) // its own stream went through the killed one
			}
		}},
		// The servers are outside of the cluster and reach it by the current context
		// of a kubeconfig; nothing is forwarded by hand.
		{"S1-9 S2-7 the connection of the client", func(*testing.T, *sandgate.Sandbox) { r.front.cut() }},
		{"kubelet", missing("kubelet")},
		{"API server", missing("kube-apiserver")},
		{"containerd", missing("containerd")},
		{"S1-23 the server, another takes over", func(*testing.T, *sandgate.Sandbox) {
			_ = r.servers[0].cmd.Process.Kill()
			_ = r.servers[0].cmd.Wait()
			r.front.to(r.servers[1].address)
			r.front.cut()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sb := r.create(t)
			p := stream(t, sb)
			defer p.Close()
			var got strings.Builder
			var once sync.Once
			faulted := make(chan struct{})
			for event, err := range p.Events() {
				if err != nil {
					t.Fatalf("after %d bytes: %v", got.Len(), err)
				}
				got.Write(event.Output.GetData())
				if got.Len() > 1000 {
					once.Do(func() {
						go func() {
							defer close(faulted)
							tt.fault(t, sb)
						}()
					})
				}
			}
			<-faulted
			if end := p.Exit(); end.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED || end.GetExitCode() != 7 {
				t.Errorf("it ended %v", end)
			}
			if got.String() != wanted() {
				t.Errorf("%d bytes arrived that are not the %d written", got.Len(), len(wanted()))
			}
		})
	}
}

// TestLossIsTold takes away what cannot be resumed.
func TestLossIsTold(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		name  string
		fault func(*testing.T, *sandgate.Sandbox)
	}{
		{"the pod", func(t *testing.T, _ *sandgate.Sandbox) {
			none := int64(0)
			if err := r.api.CoreV1().Pods(r.namespace).DeleteCollection(t.Context(), meta.DeleteOptions{GracePeriodSeconds: &none}, meta.ListOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{"the agent", func(t *testing.T, sb *sandgate.Sandbox) {
			_, _ = sb.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "kill -TERM 1", Detach: true})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sb := r.create(t)
			p := stream(t, sb)
			defer p.Close()
			var at atomic.Int64
			var failed error
			read := 0
			for event, err := range p.Events() {
				if err != nil {
					failed = err
					break
				}
				if read += len(event.Output.GetData()); read > 1000 && at.CompareAndSwap(0, time.Now().UnixNano()) {
					go tt.fault(t, sb)
				}
			}
			took := time.Since(time.Unix(0, at.Load()))
			end := p.Exit()
			t.Logf("told after %v: %v, %v", took, end, failed)
			if failed == nil && (end.GetReason() == sandboxv1.ExitReason_EXIT_REASON_EXITED) {
				t.Errorf("a false end: %v", end)
			}
			if failed == nil && end == nil {
				t.Error("neither an end nor an error")
			}
			if took > bound {
				t.Errorf("it took %v", took)
			}
			r.eventually(bound, "the sandbox says that it failed", func() bool {
				info, err := sb.Info(t.Context())
				return err == nil && info.GetState() == sandboxv1.SandboxState_SANDBOX_STATE_FAILED && info.GetStateMessage() != ""
			})
		})
	}
}

// front is one address in front of the servers.
type front struct {
	address string
	mu      sync.Mutex
	target  string
	open    map[net.Conn]bool
}

func newFront(t *testing.T) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{address: l.Addr().String(), open: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); f.cut() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.join(conn)
		}
	}()
	return f
}

func (f *front) to(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
}

func (f *front) join(conn net.Conn) {
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	back, err := net.Dial("unix", target)
	if err != nil {
		_ = conn.Close()
		return
	}
	f.mu.Lock()
	f.open[conn], f.open[back] = true, true
	f.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{conn, back}, {back, conn}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
		})
	}
	both.Wait()
	f.mu.Lock()
	delete(f.open, conn)
	delete(f.open, back)
	f.mu.Unlock()
}

// cut breaks every connection.
func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		_ = conn.Close()
	}
}
