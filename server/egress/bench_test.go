package egress

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
)

// echoing returns the port of an upstream that echoes.
func echoing(b *testing.B) uint32 {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	b.Cleanup(func() { _ = listener.Close(); <-done })
	return uint32(listener.Addr().(*net.TCPAddr).Port)
}

// BenchmarkConnection compares a new connection, one byte there and back, with
// the same without a relay.
func BenchmarkConnection(b *testing.B) {
	port := echoing(b)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	ping := func(conn net.Conn) {
		send(b, conn, "\x00")
		expect(b, conn, "\x00")
		_ = conn.Close()
	}
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			ping(conn)
		}
	})
	b.Run("spliced", func(b *testing.B) {
		d := &Dialer{Resolver: names{"a.example": {"127.0.0.1"}}}
		policy := compile(b, template(at(hosts("a.example"), port), at(cidrs("127.0.0.0/8"), port)))
		target := parse(b, "a.example", port)
		for b.Loop() {
			conn, err := d.Open(b.Context(), policy, target)
			if err != nil {
				b.Fatal(err)
			}
			near, client := net.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = conn.Relay(b.Context(), piped{client})
				_ = client.Close()
			}()
			ping(near)
			<-done
		}
	})
}

// piped is a Client of net.Pipe, whose directions end together.
type piped struct{ net.Conn }

func (piped) CloseWrite() error { return nil }

// BenchmarkRequest compares a request on a new connection of TLS that is
// intercepted with one that is only relayed.
func BenchmarkRequest(b *testing.B) {
	i := newIntercepted(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	port := uint32(i.target.port)
	read, loopback := i.policy, at(cidrs("127.0.0.0/8"), port)
	for _, intercepted := range []bool{false, true} {
		roots := i.roots
		i.policy = read
		if !intercepted {
			roots, i.policy = i.dialer.Roots, compile(b, template(at(hosts("*"), port), loopback))
		}
		b.Run(fmt.Sprintf("intercepted %t", intercepted), func(b *testing.B) {
			for b.Loop() {
				near, done := i.open(b)
				conn := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "example.com"})
				send(b, conn, "GET / HTTP/1.1\r\nHost: "+i.target.String()+"\r\nConnection: close\r\n\r\n")
				if _, err := io.ReadAll(conn); err != nil {
					b.Fatal(err)
				}
				_ = near.Close()
				_ = wait(b, done)
			}
		})
	}
}

// BenchmarkIdle prints the memory of connections that carry nothing.
func BenchmarkIdle(b *testing.B) {
	port := echoing(b)
	d := &Dialer{}
	policy := compile(b, template(at(cidrs("127.0.0.0/8"), port)))
	target := parse(b, "127.0.0.1", port)
	const conns = 200
	memory := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse + stats.StackInuse
	}
	for b.Loop() {
		before := memory()
		var ends []func()
		for range conns {
			conn, err := d.Open(b.Context(), policy, target)
			if err != nil {
				b.Fatal(err)
			}
			near, client := net.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = conn.Relay(b.Context(), piped{client})
			}()
			send(b, near, "x")
			expect(b, near, "x")
			ends = append(ends, func() { _ = conn.Close(); <-done; _ = near.Close() })
		}
		b.ReportMetric(float64(memory()-before)/conns, "B/conn")
		for _, end := range ends {
			end()
		}
	}
}
