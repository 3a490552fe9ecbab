package network

import (
	"fmt"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/test/upstream"
)

// halfOpen opens 10 000 connections to the proxy that send nothing, or begin a request
// that does not end, asks the name server 10 000 times, and then writes the file flooded
// and holds what it has.
const halfOpen = `
import multiprocessing, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
def some(n, done):
    held = []
    for i in range(500):
        try:
            s = socket.create_connection(("127.0.0.1", 3128), timeout=60)
            if i % 2: s.send(b"CONNECT example.com:443 HTTP/1.1\r\nX: ")
            held.append(s)
        except OSError: pass
    asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for i in range(500):
        name = ("n%d-%d" % (n, i)).encode()
        try: asks.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name + b"\7example\0\0\1\0\1", ("127.0.0.1", 53))
        except OSError: pass
    done.release()
    signal.pause()
done = multiprocessing.Semaphore(0)
for n in range(20): multiprocessing.Process(target=some, args=(n, done), daemon=True).start()
for n in range(20): done.acquire()
open("flooded", "w").close()
signal.pause()
`

// TestFloodsOfASandbox: half-open connections and name queries of a sandbox keep neither
// another sandbox from its destinations nor its own commands from running, and when they
// end, it has its network again.
func TestFloodsOfASandbox(t *testing.T) {
	s, ca := upstream.Site(t)
	port := portOf(s.Listener.Addr().String())
	b := start(t, "runc", local.ProfileDefault, port)
	rule := &sandboxv1.EgressRule{Hosts: []string{"example.com"}, Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{port}}
	hostile, other := b.create(rule), b.create(rule)
	for _, box := range []*sandgate.Sandbox{hostile, other} {
		if _, err := box.Write(t.Context(), "/workspace/ca.pem", []byte(ca), sandgate.WriteRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hostile.Write(t.Context(), "/workspace/flood.py", []byte(halfOpen), sandgate.WriteRequest{}); err != nil {
		t.Fatal(err)
	}
	const begin = "python3 flood.py >log 2>&1 & echo $! >pid; i=0; while [ ! -e flooded ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done; cat log; test -e flooded"
	if got, code := sh(t, hostile, begin); code != 0 || got != "" {
		t.Fatalf("the flood: %q, exit code %d", got, code)
	}
	began := time.Now()
	if got, code := sh(t, other, fmt.Sprintf(fetch, port)); got != "content" || code != 0 {
		t.Errorf("another sandbox: %q, exit code %d", got, code)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("another sandbox needed %v", took)
	}
	if got, code := sh(t, hostile, "kill $(cat pid); while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done; echo killed"); got != "killed" || code != 0 {
		t.Fatalf("the flood ends: %q, exit code %d", got, code)
	}
	// The agent notices the ends of the connections one after the other.
	const again = "i=0; until [ \"$(" + fetch + ")\" = content ] || [ $i -ge 100 ]; do sleep 0.1; i=$((i+1)); done; test $i -lt 100"
	if got, code := sh(t, hostile, fmt.Sprintf("exec 2>/dev/null; "+again, port)); code != 0 {
		t.Errorf("its own connections, after the flood: %q, exit code %d", got, code)
	}
}
