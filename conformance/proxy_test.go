package conformance

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/upstream"
)

// echo sends back what it receives on each connection.
func echo(t *testing.T, network, address string) string {
	t.Helper()
	address = upstream.Accept(t, network, address, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	if network == "unix" {
		return "unix://" + address
	}
	return address
}

// A proxy cuts at the very byte, as it was told, and is whole again afterwards.
func TestProxyCutsAtTheExactByte(t *testing.T) {
	data := noise(200_000)
	for name, address := range map[string]string{
		"tcp": echo(t, "tcp", "127.0.0.1:0"), "unix": echo(t, "unix", filepath.Join(t.TempDir(), "s")),
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, address)
			talk := func() ([]byte, error) {
				conn, err := p.dial(t.Context())
				if err != nil {
					return nil, err
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				go func() { _, _ = conn.Write(data) }()
				got := make([]byte, len(data))
				n, err := io.ReadFull(conn, got)
				return got[:n], err
			}
			for _, up := range []bool{true, false} {
				for _, mode := range []string{modeClose, modeHole} {
					left := []int64{70_001, 0}
					p.arm(plan{up: up, mode: mode, again: func() int64 {
						n := left[0]
						left = left[1:]
						return n
					}})
					got, err := talk()
					// What came back before the cut may be less than what went.
					if err == nil || len(got) > 70_001 || !bytes.Equal(got, data[:len(got)]) {
						t.Errorf("up %v, %s: %d bytes, %v", up, mode, len(got), err)
					}
					if !up && mode == modeHole && len(got) != 70_001 {
						t.Errorf("%d bytes passed, 70 001 were planned", len(got))
					}
				}
			}
			if cuts := p.disarm(); cuts != 4 {
				t.Errorf("%d cuts", cuts)
			}
			if got, err := talk(); err != nil || !bytes.Equal(got, data) {
				t.Errorf("afterwards: %d bytes, %v", len(got), err)
			}
			p.block(true)
			if _, err := talk(); err == nil {
				t.Error("a proxy that is closed lets data through")
			}
			p.block(false)
			if got, err := talk(); err != nil || !bytes.Equal(got, data) {
				t.Errorf("after it was closed: %d bytes, %v", len(got), err)
			}
		})
	}
}
