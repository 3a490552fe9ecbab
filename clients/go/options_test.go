package sandgate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAddress(t *testing.T) {
	tests := []struct {
		address string
		want    endpoint
		bad     bool
	}{
		{address: "127.0.0.1:7777", want: endpoint{target: "dns:///127.0.0.1:7777", local: true}},
		{address: "localhost:1", want: endpoint{target: "dns:///localhost:1", local: true}},
		{address: "[::1]:1", want: endpoint{target: "dns:///[::1]:1", local: true}},
		{address: ":1", want: endpoint{target: "dns:///127.0.0.1:1", local: true}},
		{address: "example.com:1", want: endpoint{target: "dns:///example.com:1"}},
		{address: "http://example.com:1", want: endpoint{target: "dns:///example.com:1"}},
		{address: "https://example.com:1/", want: endpoint{target: "dns:///example.com:1", tls: true}},
		{address: "tls://127.0.0.1:1", want: endpoint{target: "dns:///127.0.0.1:1", tls: true, local: true}},
		{address: "unix:///run/s.sock", want: endpoint{target: "unix:///run/s.sock", local: true}},
		{address: "unix://run/s.sock", bad: true},
		{address: "example.com", bad: true},
		{address: "ftp://example.com:1", bad: true},
		{address: "example.com:", bad: true},
		{address: "localhost.example.com:1", want: endpoint{target: "dns:///localhost.example.com:1"}},
	}
	for _, tt := range tests {
		got, err := parseAddress(tt.address)
		if (err != nil) != tt.bad || tt.bad && !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%s: error %v", tt.address, err)
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(endpoint{})); diff != "" {
			t.Errorf("%s: %s", tt.address, diff)
		}
	}
}

func TestEnvironmentAndOptions(t *testing.T) {
	env := map[string]string{"SANDGATE_ADDRESS": "unix:///s", "SANDGATE_TOKEN": "t", "SANDGATE_CA_FILE": "ca", "SANDGATE_TEMPLATE": "small"}
	c, err := newConfig(func(key string) string { return env[key] }, []Option{WithToken("mine")})
	if err != nil || c.address != "unix:///s" || c.token != "mine" || c.caFile != "ca" || c.template != "small" {
		t.Errorf("got %+v", c)
	}
	if c, err := newConfig(func(string) string { return "" }, nil); err != nil || c.address != DefaultAddress {
		t.Errorf("got %+v", c)
	}
}

// A token leaves the machine in clear only with WithInsecure.
func TestTokenWithoutTLS(t *testing.T) {
	tests := []struct {
		address string
		opts    []Option
		ok      bool
	}{
		{"127.0.0.1:1", nil, true},
		{"unix:///s", nil, true},
		{"https://example.com:1", nil, true},
		{"example.com:1", nil, false},
		{"http://example.com:1", nil, false},
		{"example.com:1", []Option{WithInsecure()}, true},
		{"example.com:1", []Option{WithToken("")}, true},
	}
	for _, tt := range tests {
		client, err := NewClient(t.Context(), append([]Option{WithAddress(tt.address), WithToken("t")}, tt.opts...)...)
		if (err == nil) != tt.ok {
			t.Errorf("%s: error %v", tt.address, err)
		}
		if client != nil {
			_ = client.Close()
		}
	}
}

func TestUnusableFiles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, opt := range []Option{WithCAFile(empty), WithCAFile(empty + "-not"), WithCertificate(empty, empty)} {
		if _, err := NewClient(t.Context(), WithAddress("localhost:1"), opt); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("error %v", err)
		}
	}
}
