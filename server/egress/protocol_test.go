package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"testing"
)

// smallHello is a ClientHello without anything random.
func smallHello(name string) []byte {
	message := append([]byte{3, 3}, make([]byte, 32)...)       // version, random
	message = append(message, 0, 0, 2, 0x13, 0x01, 1, 0, 0, 0) // session, cipher, compression, extensions
	message = append([]byte{1, 0, 0, byte(len(message))}, message...)
	record := append([]byte{0x16, 3, 1, 0, byte(len(message))}, message...)
	length := byte(len(name))
	return appendExtension(record, 0, append([]byte{0, length + 3, 0, 0, length}, name...))
}

func FuzzReadHello(f *testing.F) {
	named := smallHello("a.example")
	if name, _, err := readHello(bytes.NewReader(named)); name != "a.example" || err != nil {
		f.Fatalf("the seed has the name %q, %v", name, err)
	}
	f.Add(named)
	f.Add(inRecords(named, 5))
	f.Add(appendExtension(bytes.Clone(named), 0xfe0d, []byte{1}))
	f.Fuzz(func(t *testing.T, first []byte) {
		name, read, err := readHello(bytes.NewReader(first))
		if !bytes.HasPrefix(first, read) || len(read) > maxHello {
			t.Fatalf("read %d bytes of %d that are not the first", len(read), len(first))
		}
		if err != nil && name != "" {
			t.Fatalf("a broken ClientHello has the name %q", name)
		}
		// What carries a ClientHello never passes for another protocol.
		if err == nil && classify(first) != speaksTLS {
			t.Fatalf("a ClientHello is taken for protocol %d", classify(first))
		}
	})
}

// FuzzClassify compares with a parser of HTTP that real servers use.
func FuzzClassify(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\r\nGET / HTTP/1.1\nHost: a\n\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"SSH-2.0-x\r\n", "EHLO a\r\n", "GET /\r\n", "GET\f/\x01 HTTP/1.1\r\n", "\xa0GET\x85/", "\x16\x03\x01", "\x80\x2e\x01\x03",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, first []byte) {
		if _, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(first))); err == nil && classify(first) != speaksHTTP {
			t.Fatalf("%q is a request, and taken for protocol %d", first, classify(first))
		}
		// More bytes never change what is clear.
		for i := range min(len(first), 64) {
			if early := classify(first[:i]); early != unknown && early != classify(first) {
				t.Fatalf("%q is protocol %d after %d bytes, and then %d", first, early, i, classify(first))
			}
		}
	})
}

// TestLenientRequestLinesAreClassified has request lines that net/http refuses and that Python's
// http.server, for one, answers.
func TestLenientRequestLinesAreClassified(t *testing.T) {
	for first, want := range map[string]protocol{
		"GET /\x01 HTTP/1.1\r\n": speaksHTTP, "get /\x00 HTTP/1.1\r\n": speaksHTTP, "GET\f/\fHTTP/1.1\r\n": speaksHTTP,
		"GET\x1c/ HTTP/1.1\r\n": speaksHTTP, "GET\x85/\xa0HTTP/1.1\r\n": speaksHTTP, "\x85GET / HTTP/1.1\r\n": speaksHTTP,
		"\v\fPOST / HTTP/1.1\r\n": speaksHTTP, "GET /\x01": unknown,
		"get key\r\n": speaksOther, "A1 \x00": speaksOther, "AMQP\x00\x00\x09\x01": speaksOther,
	} {
		if got := classify([]byte(first)); got != want {
			t.Errorf("%q is protocol %d, want %d", first, got, want)
		}
	}
}

// dribble returns one byte per read.
type dribble struct{ rest []byte }

func (d *dribble) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		return 0, io.EOF
	}
	p[0] = d.rest[0]
	d.rest = d.rest[1:]
	return 1, nil
}

func TestReadHelloKeepsWhatItRead(t *testing.T) {
	named := inRecords(padded(t, hello(t, &tls.Config{ServerName: "a.example"})), 9000)
	name, read, err := readHello(&dribble{named})
	if name != "a.example" || !bytes.Equal(read, named) || err != nil {
		t.Errorf("got %q, %d of %d bytes, %v", name, len(read), len(named), err)
	}
	endless := io.MultiReader(bytes.NewReader([]byte("\x16\x03\x01\x40\x00\x01\x00\xff\xff")), zeros{})
	if _, read, err := readHello(endless); err == nil || len(read) > maxHello {
		t.Errorf("an endless one: read %d bytes, %v", len(read), err)
	}
	tiny := io.MultiReader(&repeat{text: []byte("\x16\x03\x01\x00\x01\x01")})
	if _, read, err := readHello(tiny); err == nil || len(read) > maxHello || errors.Is(err, io.EOF) {
		t.Errorf("endless records: read %d bytes, %v", len(read), err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type repeat struct {
	text []byte
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at%len(r.text)]
		r.at++
	}
	return len(p), nil
}
