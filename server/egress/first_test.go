package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// hello returns a ClientHello as crypto/tls writes it.
func hello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_ = tls.Client(far, config).Handshake()
		_ = far.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(near, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(near, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// inRecords splits the message of a ClientHello into records of n bytes.
func inRecords(hello []byte, n int) []byte {
	var split []byte
	for rest := hello[5:]; len(rest) > 0; {
		part := rest[:min(n, len(rest))]
		rest = rest[len(part):]
		split = append(split, hello[0], hello[1], hello[2], byte(len(part)>>8), byte(len(part)))
		split = append(split, part...)
	}
	return split
}

// appendExtension adds an extension to a ClientHello.
func appendExtension(hello []byte, kind uint16, content []byte) []byte {
	extension := append([]byte{byte(kind >> 8), byte(kind), byte(len(content) >> 8), byte(len(content))}, content...)
	grow := func(at, bytes int) {
		size := 0
		for i := range bytes {
			size = size<<8 | int(hello[at+i])
		}
		size += len(extension)
		for i := range bytes {
			hello[at+i] = byte(size >> (8 * (bytes - 1 - i)))
		}
	}
	at := 5 + 4 + 2 + 32
	at += 1 + int(hello[at])
	at += 2 + int(hello[at])<<8 + int(hello[at+1])
	at += 1 + int(hello[at])
	grow(3, 2)
	grow(6, 3)
	grow(at, 2)
	return append(hello, extension...)
}

func TestRelayChecksFirstBytes(t *testing.T) {
	named := hello(t, &tls.Config{ServerName: "a.example"})
	other := hello(t, &tls.Config{ServerName: "b.example"})
	nameless := hello(t, &tls.Config{InsecureSkipVerify: true})
	cut := named[:len(named)-1]
	ech := []byte("\x00\x00\x01\x00\x01\x07\x00\x20" + strings.Repeat("k", 32) + "\x00\x90" + strings.Repeat("p", 0x90))
	twoNames := appendExtension(bytes.Clone(named), 0, []byte("\x00\x0c\x00\x00\x09b.example"))
	for _, c := range []struct {
		name  string
		port  uint32
		first string
		want  Reason // empty: the upstream gets the bytes
		reply string // a part of what the program gets
	}{
		{"TLS for the name", 443, string(named), "", ""},
		{"TLS for the name in upper case", 443, strings.Replace(string(named), "a.example", "A.EXAMPLE", 1), "", ""},
		{"TLS in many records", 443, string(inRecords(named, 7)), "", ""},
		{"TLS in records of one byte", 443, string(inRecords(named, 1)), "", ""},
		{"TLS with an ECH extension, as browsers send without a key", 443, string(appendExtension(bytes.Clone(named), 0xfe0d, ech)), "", ""},
		{"TLS with GREASE", 443, string(appendExtension(bytes.Clone(named), 0x3a3a, []byte{0})), "", ""},
		{"TLS with a name after 20 kB", 443, string(inRecords(padded(t, named), 16000)), "", ""},
		{"TLS on port 80", 80, string(named), "", ""},
		{"TLS on another port", 8443, string(named), "", ""},
		{"TLS for another name", 443, string(other), ReasonServerName, "\x15\x03\x03\x00\x02\x02\x70"},
		{"TLS for another name on port 80", 80, string(other), ReasonServerName, "\x02\x70"},
		{"TLS for another name on another port", 22, string(other), ReasonServerName, "\x02\x70"},
		{"TLS for another name in many records", 443, string(inRecords(other, 3)), ReasonServerName, "\x02\x70"},
		{"TLS for a name below", 443, strings.Replace(string(named), "a.example", "aaexample", 1), ReasonServerName, "\x02\x70"},
		{"TLS without a name", 443, string(nameless), ReasonServerName, "\x02\x70"},
		{"TLS without a name on another port", 5000, string(nameless), ReasonServerName, "\x02\x70"},
		{"ECH with another outer name", 443, string(appendExtension(bytes.Clone(other), 0xfe0d, ech)), ReasonServerName, "\x02\x70"},
		{"two names", 443, string(twoNames), ReasonProtocol, "\x02\x70"},
		{"a name with a trailing dot", 443, strings.Replace(string(named), "a.example", "a.exampl.", 1), ReasonProtocol, "\x02\x70"},
		{"a name with a NUL", 443, strings.Replace(string(named), "a.example", "a.exampl\x00", 1), ReasonServerName, "\x02\x70"},
		{"half a ClientHello", 443, string(cut), ReasonProtocol, "\x02\x70"},
		{"an alert before the ClientHello", 443, "\x15\x03\x01\x00\x02\x01\x00" + string(other), ReasonProtocol, "\x02\x70"},
		{"a change of ciphers before the ClientHello", 9999, "\x14\x03\x01\x00\x01\x01" + string(other), ReasonProtocol, "\x02\x70"},
		{"an empty record before the ClientHello", 443, "\x16\x03\x01\x00\x00" + string(other), ReasonProtocol, "\x02\x70"},
		{"a ClientHello in the framing of SSL 2.0", 8443, "\x80\x2e\x01\x03\x01" + strings.Repeat("a", 60), ReasonProtocol, "\x02\x70"},
		{"an endless ClientHello", 443, "\x16\x03\x01\x40\x00\x01\xff\xff\xff" + strings.Repeat("\x00", 1<<16), ReasonProtocol, "\x02\x70"},
		{"HTTP on port 443", 443, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", ReasonProtocol, "403 Forbidden"},
		{"SSH on port 443", 443, "SSH-2.0-x\r\n", ReasonProtocol, ""},
		{"SSH on port 80", 80, "SSH-2.0-x\r\n", ReasonProtocol, ""},
		{"a binary protocol on port 443", 443, "\x00\x01\x02", ReasonProtocol, ""},
		{"SSH on port 22", 22, "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "", ""},
		{"PostgreSQL", 5432, "\x00\x00\x00\x08\x04\xd2\x16\x2f", "", ""},
		{"git's own protocol", 9418, "0032git-upload-pack /p.git\x00host=a.example\x00", "", ""},
		{"Redis", 6379, "*1\r\n$4\r\nPING\r\n", "", ""},
		{"SMTP", 25, "EHLO a.example\r\n", "", ""},
		{"HTTP for another host", 80, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", ReasonHost, "the request is for b.example"},
		{"HTTP for another host on another port", 8080, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", ReasonHost, "it must be for a.example:8080"},
		{"HTTP for another port", 8080, "GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n", ReasonHost, "403"},
		{"HTTP without a host", 80, "GET / HTTP/1.0\r\n\r\n", ReasonHost, "names no host"},
		{"HTTP without a Host header", 80, "GET / HTTP/1.1\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with two hosts", 80, "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with a folded host", 80, "GET / HTTP/1.1\r\nHost: a.example\r\n b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with a blank before the colon", 80, "GET / HTTP/1.1\r\nHost : b.example\r\nHost: a.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with a user in the host", 80, "GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with another absolute URL", 80, "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", ReasonHost, "403"},
		{"HTTP with a CONNECT", 80, "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n", ReasonHost, "403"},
		{"HTTP after empty lines", 8080, "\r\n\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP after blanks", 8080, "  GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with an unknown method", 8080, "X-Y / HTTP/1.1\r\nHost: b.example\r\n\r\n", ReasonHost, "403"},
		{"HTTP in lower case", 8080, "get / http/1.1\r\nhost: b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP with tabs", 8080, "GET\t/\tHTTP/1.1\r\nHost: b.example\r\n\r\n", "", "400 Bad Request"},
		{"HTTP/0.9", 8080, "GET /\r\n", "", "400 Bad Request"},
		{"HTTP with line feeds only", 8080, "GET / HTTP/1.1\nHost: b.example\n\n", ReasonHost, "403"},
		{"HTTP with carriage returns only", 8080, "GET / HTTP/1.1\rHost: b.example\r\r", "", ""},
		{"a first line without end", 8080, strings.Repeat("A", 1<<17), ReasonProtocol, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := relay(t, &Dialer{}, "a.example", c.port)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = io.WriteString(r.program, c.first) // the relay may end before it has read all
				_ = r.program.CloseWrite()
			}()
			passes := c.want == "" && c.reply == "" && c.name != "HTTP with carriage returns only"
			if passes {
				got, err := io.ReadAll(r.upstream)
				if err != nil || string(got) != c.first {
					t.Fatalf("the upstream got %d bytes, %v; want %d", len(got), err, len(c.first))
				}
				_ = r.upstream.Close()
				if err := wait(t, r.done); err != nil {
					t.Fatal(err)
				}
				<-sent
				if up, _ := r.conn.Traffic(); up != int64(len(c.first)) {
					t.Errorf("sent is %d", up)
				}
				return
			}
			answer, _ := io.ReadAll(r.program)
			err := wait(t, r.done)
			<-sent
			var denied *Denied
			if errors.As(err, &denied) != (c.want != "") || denied != nil && denied.Reason != c.want {
				t.Fatalf("got %v, want reason %q", err, c.want)
			}
			if !strings.Contains(string(answer), c.reply) {
				t.Errorf("the program got %q, want %q", answer, c.reply)
			}
			if got, _ := io.ReadAll(r.upstream); len(got) > 0 {
				t.Errorf("the upstream got %q", got)
			}
		})
	}
}

// padded returns a ClientHello whose name comes after 20 kB.
func padded(t testing.TB, named []byte) []byte {
	t.Helper()
	at := 5 + 4 + 2 + 32
	at += 1 + int(named[at])
	at += 2 + int(named[at])<<8 + int(named[at+1])
	at += 1 + int(named[at])
	head, extensions := bytes.Clone(named[:at]), bytes.Clone(named[at+2:])
	padding := append([]byte{0, 21, 20000 >> 8, 20000 & 0xff}, make([]byte, 20000)...)
	all := append(padding, extensions...)
	message := append(head[5:], byte(len(all)>>8), byte(len(all)))
	message = append(message, all...)
	size := len(message) - 4
	message[1], message[2], message[3] = byte(size>>16), byte(size>>8), byte(size)
	return append([]byte{0x16, 3, 1, 0, 0}, message...)
}
