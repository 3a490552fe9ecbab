package network

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// hoard opens 2 000 connections by the proxy, completes the TLS handshake of each,
// and keeps them. It prints how many it holds.
const hoard = `
import socket, ssl, sys, threading, time
port, held, lock = int(sys.argv[1]), [], threading.Lock()
context = ssl.create_default_context()
def one():
    try:
        s = socket.create_connection(("127.0.0.1", 3128), timeout=60)
        s.sendall(b"CONNECT api.example:%d HTTP/1.1\r\nHost: api.example\r\n\r\n" % port)
        if b" 200 " not in s.recv(4096): return
        s = context.wrap_socket(s, server_hostname="api.example")
        with lock: held.append(s)
    except OSError: pass
def some():
    for _ in range(100): one()
workers = [threading.Thread(target=some) for _ in range(20)]
for w in workers: w.start()
for w in workers: w.join()
print(len(held), flush=True)
time.sleep(600)
`

// TestInterceptedConnectionsAreBoundedPerSandbox: of 2 000 intercepted connections of one sandbox the server
// holds 256, in bounded memory, and another sandbox is not affected.
func TestInterceptedConnectionsAreBoundedPerSandbox(t *testing.T) {
	s := startSecrets(t, "runc")
	other := s.create(
		&sandboxv1.EgressRule{Hosts: []string{"api.example"}, Ports: []uint32{s.port}, Secret: &sandboxv1.EgressSecret{Name: "token"}},
		&sandboxv1.EgressRule{Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{s.port}},
	)
	check := "curl -sS -m 60 " + s.url("api.example", "/check")
	if got, _ := sh(t, other, check); !strings.HasPrefix(got, "ok") {
		t.Fatal(got)
	}
	if _, err := s.box.Write(t.Context(), "/workspace/hoard.py", []byte(hoard), sandgate.WriteRequest{}); err != nil {
		t.Fatal(err)
	}
	before := memoryInUse()
	script := "python3 hoard.py %d >held 2>&1 &\ni=0; while [ ! -s held ] && [ $i -lt 1100 ]; do sleep 0.1; i=$((i+1)); done; cat held"
	if got, _ := sh(t, s.box, fmt.Sprintf(script, s.port)); got != "256" {
		t.Errorf("held: %q", got)
	}
	used := memoryInUse() - before
	t.Logf("the server holds %d KiB for each", used>>10/256)
	if used > 64<<20 {
		t.Errorf("the server holds %d MiB for them", used>>20)
	}
	if got, _ := sh(t, other, check); !strings.HasPrefix(got, "ok") {
		t.Errorf("another sandbox: %q", got)
	}
}

// memoryInUse returns the memory of this process, which has the server, in bytes.
func memoryInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapInuse + stats.StackInuse)
}
