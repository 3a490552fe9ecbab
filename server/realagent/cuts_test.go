//go:build linux

package realagent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// cutting is a provider whose connections to agents can be cut.
type cutting struct {
	providers.Provider
	mu    sync.Mutex
	conns []net.Conn
	dials int
}

func (c *cutting) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	info, conn, err := c.Provider.Create(ctx, name, spec)
	if err == nil && conn != nil {
		c.keep(conn)
	}
	return info, conn, err
}

func (c *cutting) Dial(ctx context.Context, name string) (net.Conn, error) {
	conn, err := c.Provider.Dial(ctx, name)
	if err != nil {
		return nil, err
	}
	c.keep(conn)
	return conn, nil
}

func (c *cutting) keep(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	c.dials++
}

func (c *cutting) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// While the connections to the agent are cut at random moments, every byte
// arrives once and in order, and the end is the command's own.
func TestPipeCutsLoseNoByte(t *testing.T) {
	const lines = 1_000_000
	want := sha256.New()
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(want, i)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	pipe := &cutting{}
	client := real(t, func(p providers.Provider) providers.Provider { pipe.Provider = p; return pipe })
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(random.IntN(30_000)) * time.Microsecond):
				pipe.cut()
			}
		}
	})
	defer cutter.Wait()
	defer close(stop)
	for round := range 3 {
		sum, exited, err := sum(t.Context(), client, &sandboxv1.ExecuteRequest{SandboxId: "a",
			Command: &sandboxv1.ExecuteRequest_Shell{Shell: fmt.Sprintf("seq 1 %d; exit 7", lines)}})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED || exited.GetExitCode() != 7 {
			t.Fatalf("round %d: %v", round, exited)
		}
		if string(sum.Sum(nil)) != string(want.Sum(nil)) {
			t.Fatalf("round %d: the bytes differ", round)
		}
	}
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	t.Logf("%d connections", pipe.dials)
	if pipe.dials < 3 {
		t.Errorf("only %d connections: nothing was cut", pipe.dials)
	}
}

func sum(ctx context.Context, client sandboxv1.SandboxServiceClient, req *sandboxv1.ExecuteRequest) (hash.Hash, *sandboxv1.Exited, error) {
	stream, err := client.Execute(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	h := sha256.New()
	var exited *sandboxv1.Exited
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return h, exited, nil
		}
		if err != nil {
			return h, exited, err
		}
		h.Write(m.GetOutput().GetData())
		if m.GetExited() != nil {
			exited = m.GetExited()
		}
	}
}
