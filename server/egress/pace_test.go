package egress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	paceRate  = 1 << 20
	paceBurst = 64 << 10
	paceBytes = 256 << 10
)

// atLeast is how long so many bytes take at paceRate.
func atLeast(bytes int) time.Duration {
	return time.Duration(bytes-paceBurst) * time.Second / paceRate
}

// Two connections that share a rate carry no more than it in all directions together.
func TestPaceIsSharedByConnectionsAndDirections(t *testing.T) {
	shared := NewRate(paceRate, paceBurst)
	content := bytes.Repeat([]byte("0123456789abcdef"), paceBytes/16)
	begin := time.Now()
	for range 2 {
		r := relay(t, &Dialer{}, "10.0.0.1", 443, func(c *Conn) { c.Pace(shared) })
		for _, way := range []struct {
			from io.Writer
			to   io.Reader
		}{{r.program, r.upstream}, {r.upstream, r.program}} {
			go func() { _, _ = way.from.Write(content) }()
			got := make([]byte, paceBytes)
			if _, err := io.ReadFull(way.to, got); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("the content differs: %v", err)
			}
		}
	}
	if took := time.Since(begin); took < atLeast(4*paceBytes) {
		t.Errorf("%d bytes took %v, want at least %v", 4*paceBytes, took, atLeast(4*paceBytes))
	}
}

func TestPaceBoundsResponses(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, paceBytes))
	}))
	conn, err := d.Open(t.Context(), policy, target)
	if err != nil {
		t.Fatal(err)
	}
	conn.Pace(NewRate(paceRate, paceBurst))
	near, client := pair(t)
	run(t, conn, client)
	begin := time.Now()
	send(t, near, fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", target))
	resp, err := http.ReadResponse(bufio.NewReader(near), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if took := time.Since(begin); n != paceBytes || err != nil || took < atLeast(paceBytes) {
		t.Errorf("%d bytes, %v, took %v, want at least %v", n, err, took, atLeast(paceBytes))
	}
}

// A connection that waits for its rate ends at once when it is cut.
func TestPacedConnectionIsCutWhileItWaits(t *testing.T) {
	r := relay(t, &Dialer{}, "10.0.0.1", 443, func(c *Conn) { c.Pace(NewRate(1, paceBurst)) })
	go func() { _, _ = r.program.Write(make([]byte, paceBytes)) }()
	// The burst passes, up to a chunk; then the next byte would take hours.
	if _, err := io.ReadFull(r.upstream, make([]byte, paceBurst-chunk)); err != nil {
		t.Fatal(err)
	}
	if err := r.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, r.done); err == nil {
		t.Error("a cut connection has ended in order")
	}
}

// Connections that end while they wait, such as those of programs that try again after a
// timeout, delay no later one: without that, their bytes would add up without passing.
func TestEndedConnectionsDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := NewRate(paceRate, paceBurst)
		made := func() *Conn {
			c := &Conn{cut: make(chan struct{}), cause: net.ErrClosed, began: time.Now()}
			c.Pace(shared)
			return c
		}
		for range 10 {
			gaveUp := make(chan struct{})
			var waiting sync.WaitGroup
			for i := range 20 {
				c := made()
				ended := gaveUp // a request's, on a connection that goes on
				if i%2 == 0 {
					c.cut, ended = gaveUp, nil
				}
				waiting.Go(func() {
					var err error
					for err == nil {
						err = c.await(chunk, ended)
					}
				})
			}
			synctest.Wait()
			close(gaveUp)
			waiting.Wait()
		}
		begin := time.Now()
		if err := made().await(chunk, nil); err != nil {
			t.Error(err)
		}
		if took, most := time.Since(begin), time.Second*chunk/paceRate; took > most {
			t.Errorf("a chunk of a later connection took %v, want at most %v", took, most)
		}
	})
}
