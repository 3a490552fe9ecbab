package daemon

import "testing"

func TestAnnounced(t *testing.T) {
	for line, want := range map[string]string{
		"sandgate v1 serves at 127.0.0.1:7777, provider local, no TLS, no authentication\n":     "127.0.0.1:7777",
		"sandgate dev serves at unix:///tmp/a b.sock, provider local, TLS\n":                    "unix:///tmp/a b.sock",
		`{"time":"…","level":"INFO","msg":"serving","address":"127.0.0.1:1","tls":true}` + "\n": "127.0.0.1:1",
		`{"level":"INFO","msg":"something","address":"127.0.0.1:1"}` + "\n":                     "",
		"sandgate: metrics and health at 127.0.0.1:9090\n":                                      "",
	} {
		if got := announced(line); got != want {
			t.Errorf("%q: %q", line, got)
		}
	}
}
