package egress

import (
	"bytes"
	"testing"
	"time"
)

func TestSOCKS(t *testing.T) {
	s, client := start(t, time.Second)
	address := echo(t)
	(&upstream{client: client, dials: map[string]string{
		"ok.example:443": address, "192.0.2.1:80": address, "[2001:db8::1]:80": address, "down.example:443": "127.0.0.1:1",
	}}).attach(t)
	name := func(command byte, host string, port byte) string {
		return "\x05" + string([]byte{command}) + "\x00\x03" + string([]byte{byte(len(host))}) + host + "\x01" + string([]byte{port})
	}
	for what, c := range map[string]struct{ request, want string }{
		"name":        {name(1, "ok.example", 0xbb), "\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00echo x"},
		"denied":      {name(1, "no.example", 0xbb), "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"},
		"unreachable": {name(1, "down.example", 0xbb), "\x05\x00\x05\x04\x00\x01\x00\x00\x00\x00\x00\x00"},
		"udp":         {name(3, "ok.example", 0xbb), "\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00"},
		"bind":        {name(2, "ok.example", 0xbb), "\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00"},
		"no name":     {name(1, "", 0xbb), "\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00"},
		"ipv4":        {"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50", "\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00echo x"},
		"ipv6":        {"\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50", "\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00echo x"},
		"kind":        {"\x05\x01\x00\x09", "\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00"},
	} {
		if got := exchange(t, s.cfg.Proxy, "\x05\x01\x00"+c.request+"x"); got != c.want {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
	if got := exchange(t, s.cfg.Proxy, "\x05\x01\x02"); got != "\x05\xff" {
		t.Errorf("only a password: %q", got)
	}
}

func FuzzSOCKSRequest(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x03\x01a\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50"))
	f.Fuzz(func(t *testing.T, data []byte) {
		host, port, failure, err := readSOCKSRequest(bytes.NewReader(data))
		if served := err == nil && failure == socksSucceeded; served != (host != "" && port != 0) {
			t.Errorf("%q: %q %d %d %v", data, host, port, failure, err)
		}
	})
}
