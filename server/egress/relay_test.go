package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRelayChecksEachRequest(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %q", r.Method, r.Host, r.RequestURI, body)
	}))
	near, done := program(t, d, policy, target)
	reader := bufio.NewReader(near)
	read := func() (int, string) {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for range 2 {
		send(t, near, "POST /a;b=%2F?x=1;y=2 HTTP/1.1\r\nHost: A.Example:"+fmt.Sprint(target.port)+"\r\nContent-Length: 2\r\n\r\nhi")
		if status, body := read(); status != 200 || body != fmt.Sprintf("POST %s /a;b=%%2F?x=1;y=2 %q", target, "hi") {
			t.Fatalf("got %d %s", status, body)
		}
	}
	// Two framings of one body: net/http decides, and the upstream gets one.
	send(t, near, "POST / HTTP/1.1\r\nHost: "+target.String()+"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: b.example\r\n\r\n")
	if status, body := read(); status != 200 && status != 400 || strings.Contains(body, "smuggled") {
		t.Fatalf("got %d %s", status, body)
	}
	if status, body := read(); status != http.StatusForbidden || !strings.Contains(body, "the request is for b.example") {
		t.Fatalf("got %d %s", status, body)
	}
	if _, err := reader.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
	var denied *Denied
	if err := wait(t, done); !errors.As(err, &denied) || denied.Reason != ReasonHost {
		t.Errorf("got %v", err)
	}
}

func TestRelayAnswersAfterTheProgramsEnd(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
		fmt.Fprint(w, "answered")
	}))
	near, done := program(t, d, policy, target)
	send(t, near, "GET / HTTP/1.1\r\nHost: "+target.String()+"\r\n\r\n")
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(near); err != nil || !strings.HasSuffix(string(got), "answered") {
		t.Errorf("got %q, %v", got, err)
	}
	if err := wait(t, done); err != nil {
		t.Error(err)
	}
}

func TestRelayHTTP2WithoutTLS(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Status")
		fmt.Fprintf(w, "%s %s", r.Proto, r.Host)
		w.Header().Set("Status", "ok")
	}))
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	near, done := program(t, d, policy, target)
	transport := &http.Transport{
		Protocols:   &protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil },
	}
	get := func(host string) (int, string, http.Header) {
		request, err := http.NewRequest("GET", "http://"+target.String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body), response.Trailer
	}
	if status, body, trailer := get(target.String()); status != 200 || body != "HTTP/2.0 "+target.String() || trailer.Get("Status") != "ok" {
		t.Errorf("got %d %s %v", status, body, trailer)
	}
	if status, body, _ := get("b.example"); status != http.StatusMisdirectedRequest {
		t.Errorf("another host on the same connection: got %d %s", status, body)
	}
	if status, _, _ := get(target.String()); status != 200 {
		t.Errorf("the connection is lost: %d", status)
	}
	transport.CloseIdleConnections()
	var denied *Denied
	if err := wait(t, done); !errors.As(err, &denied) || denied.Reason != ReasonHost {
		t.Errorf("got %v", err)
	}
}

// A program that asks for much and reads nothing makes the server hold little.
func TestRelayHTTP2HoldsLittle(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}))
	conn, err := d.Open(t.Context(), policy, target)
	if err != nil {
		t.Fatal(err)
	}
	near, client := pair(t)
	done := run(t, conn, client)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 10, MaxReceiveBufferPerConnection: 64 << 10},
		DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil },
	}
	for range 20 {
		request, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+target.String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
	}
	held, before := int64(0), int64(-1)
	for held != before {
		time.Sleep(200 * time.Millisecond)
		before = held
		_, held = conn.Traffic()
	}
	if held > 2*upstreamWindow {
		t.Errorf("%d bytes came from the upstream", held)
	}
	_ = conn.Close()
	_ = wait(t, done)
}

// What goes wrong beyond the server names none of the server's addresses.
func TestRelayHidesTheServersNetwork(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}))
	near, _ := program(t, d, policy, target)
	send(t, near, "POST / HTTP/1.1\r\nHost: "+target.String()+"\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
	got, err := io.ReadAll(near)
	if err != nil || !strings.Contains(string(got), "502 ") || strings.Contains(string(got), "127.0.0.1") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRelayKeepsUpgradesThatNothingElseSpeaks(t *testing.T) {
	d, policy, target := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, "no upgrade")
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(conn, buffered)
	}))
	for _, c := range []struct{ protocol, first, echo string }{
		{"websocket", "HTTP/1.1 101", "echo this"}, {"h2c", "HTTP/1.1 200", ""}, {"TLS/1.0", "HTTP/1.1 200", ""}, {"websocket, H2C", "HTTP/1.1 200", ""},
	} {
		t.Run(c.protocol, func(t *testing.T) {
			near, done := program(t, d, policy, target)
			send(t, near, "GET / HTTP/1.1\r\nHost: "+target.String()+"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "+c.protocol+"\r\nHTTP2-Settings: AA\r\n\r\n")
			reader := bufio.NewReader(near)
			expect(t, reader, c.first)
			if c.echo != "" {
				for line := "x"; strings.TrimSpace(line) != ""; {
					line, _ = reader.ReadString('\n')
				}
				send(t, near, c.echo)
				expect(t, reader, c.echo)
			}
			_ = near.CloseWrite()
			_, _ = io.Copy(io.Discard, reader)
			if err := wait(t, done); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRelayLetsTheUpstreamSpeakFirst(t *testing.T) {
	r := relay(t, &Dialer{}, "a.example", 22)
	send(t, r.upstream, "SSH-2.0-server\r\n")
	expect(t, r.program, "SSH-2.0-server\r\n")
	send(t, r.program, "SSH-2.0-client\r\n")
	expect(t, r.upstream, "SSH-2.0-client\r\n")
	// Half-close, both ways.
	_ = r.program.CloseWrite()
	if _, err := r.upstream.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	send(t, r.upstream, "bye")
	_ = r.upstream.CloseWrite()
	expect(t, r.program, "bye")
	if err := wait(t, r.done); err != nil {
		t.Error(err)
	}
	if sent, received := r.conn.Traffic(); sent != 16 || received != 19 {
		t.Errorf("carried %d and %d", sent, received)
	}
}

func TestRelayHoldsTheUpstreamOfTLS(t *testing.T) {
	r := relay(t, &Dialer{}, "a.example", 443)
	send(t, r.upstream, "early")
	named := hello(t, &tls.Config{ServerName: "a.example"})
	for _, b := range named {
		send(t, r.program, string([]byte{b}))
	}
	expect(t, r.upstream, string(named))
	expect(t, r.program, "early")
}

func TestRelayBulk(t *testing.T) {
	r := relay(t, &Dialer{}, "10.0.0.1", 443)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		_, _ = r.program.Write(data)
		_ = r.program.CloseWrite()
	}()
	go func() {
		_, _ = io.Copy(r.upstream, r.upstream)
		_ = r.upstream.CloseWrite()
	}()
	got, err := io.ReadAll(r.program)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	if err := wait(t, r.done); err != nil {
		t.Error(err)
	}
}

func TestRelayBreaks(t *testing.T) {
	for _, c := range []struct {
		name    string
		d       *Dialer
		host    string
		port    uint32
		first   string
		breakIt func(*relayed)
	}{
		{"closed", &Dialer{}, "10.0.0.1", 443, "x", func(r *relayed) { _ = r.conn.Close() }},
		{"closed before the first byte", &Dialer{}, "a.example", 443, "", func(r *relayed) { _ = r.conn.Close() }},
		{"closed in the first line", &Dialer{}, "a.example", 8080, "GET ", func(r *relayed) { _ = r.conn.Close() }},
		{"closed in a request", &Dialer{}, "a.example", 80, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9\r\n\r\n", func(r *relayed) { _ = r.conn.Close() }},
		{"idle", &Dialer{Idle: 50 * time.Millisecond}, "10.0.0.1", 443, "x", func(*relayed) {}},
		{"idle, HTTP", &Dialer{Idle: 50 * time.Millisecond}, "a.example", 80, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", func(*relayed) {}},
		{"a late ClientHello", &Dialer{FirstBytes: 50 * time.Millisecond}, "a.example", 443, "\x16\x03", func(*relayed) {}},
		{"a late line", &Dialer{FirstBytes: 50 * time.Millisecond}, "a.example", 8080, "GET ", func(*relayed) {}},
		{"a reset upstream", &Dialer{}, "10.0.0.1", 443, "x", func(r *relayed) { _ = r.upstream.SetLinger(0); _ = r.upstream.Close() }},
		{"a reset program", &Dialer{}, "10.0.0.1", 443, "x", func(r *relayed) { _ = r.program.SetLinger(0); _ = r.program.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := relay(t, c.d, c.host, c.port)
			send(t, r.program, c.first)
			if strings.HasPrefix(c.host, "10.") {
				expect(t, r.upstream, c.first)
			}
			c.breakIt(r)
			var denied *Denied
			if err := wait(t, r.done); err == nil || errors.As(err, &denied) {
				t.Errorf("got %v", err)
			}
			_, _ = io.Copy(io.Discard, r.upstream) // the upstream's end is closed
		})
	}
}

func TestRelayEndsWithItsContext(t *testing.T) {
	_, client := pair(t)
	toUpstream, _ := pair(t)
	conn := newConn(&Dialer{}, nil, parse(t, "10.0.0.1", 22), toUpstream)
	why := errors.New("the sandbox is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := conn.Relay(ctx, client); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestRelaySilentProgramOfTLSIsNotDenied(t *testing.T) {
	r := relay(t, &Dialer{}, "a.example", 443)
	_ = r.program.CloseWrite()
	if err := wait(t, r.done); err != nil {
		t.Error(err)
	}
}
