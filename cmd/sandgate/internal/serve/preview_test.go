package serve

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/server"
)

func TestPreviewListener(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "none.crt"), filepath.Join(t.TempDir(), "none.key")
	for name, c := range map[string]struct {
		preview  previewConfig
		insecure bool
		noSecret bool
		domain   string
		want     string
	}{
		"none":                {},
		"loopback":            {preview: previewConfig{Listen: ":0"}, domain: "http://*.localhost:"},
		"a domain":            {preview: previewConfig{Listen: "127.0.0.1:0", Domain: "dev.test"}, domain: "http://*.dev.test:"},
		"a domain and port":   {preview: previewConfig{Listen: "127.0.0.1:0", Domain: "dev.test:99"}, domain: "http://*.dev.test:99"},
		"a proxy":             {preview: previewConfig{Listen: "0.0.0.0:0", Domain: "dev.test", BehindProxy: true}, domain: "https://*.dev.test"},
		"insecure":            {preview: previewConfig{Listen: "0.0.0.0:0", Domain: "dev.test"}, insecure: true, domain: "http://*.dev.test:"},
		"a domain alone":      {preview: previewConfig{Domain: "dev.test"}, want: "need --preview-listen"},
		"beyond this machine": {preview: previewConfig{Listen: "0.0.0.0:0", Domain: "dev.test"}, want: "without TLS"},
		"no domain":           {preview: previewConfig{Listen: "0.0.0.0:0", BehindProxy: true}, want: "needs --preview-domain"},
		"a wrong domain":      {preview: previewConfig{Listen: ":0", Domain: "*.dev.test"}, want: "--preview-domain"},
		"no key":              {preview: previewConfig{Listen: ":0", Cert: cert}, want: "both --preview-cert and --preview-key"},
		"two ends of TLS":     {preview: previewConfig{Listen: ":0", Cert: cert, Key: key, BehindProxy: true}, want: "leave --preview-cert out"},
		"no such certificate": {preview: previewConfig{Listen: ":0", Cert: cert, Key: key}, want: "--preview-cert and --preview-key"},
		"no secret":           {preview: previewConfig{Listen: ":0"}, noSecret: true, want: "--spec-secret-file"},
		"a negative lifetime": {preview: previewConfig{Listen: ":0", MaxTTL: -time.Second}, want: "negative"},
		"no address":          {preview: previewConfig{Listen: "nonsense", BehindProxy: true}, want: "--preview-listen"},
		"a unix socket":       {preview: previewConfig{Listen: "unix://" + t.TempDir() + "/s"}, want: "must be HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			logger, err := newLogger("error", "text", t.Output())
			if err != nil {
				t.Fatal(err)
			}
			cfg := server.Config{SpecSecret: []byte(strings.Repeat("s", 32)), Insecure: c.insecure, Logger: logger}
			if c.noSecret {
				cfg.SpecSecret = nil
			}
			l, err := c.preview.open(t.Context(), &cfg)
			if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
			if err == nil {
				if got := announcePreview(cfg.Preview); !strings.HasPrefix(got, c.domain) {
					t.Errorf("%q, want %q", got, c.domain)
				}
				if err := closeListener(l); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestServePreview(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "--preview-listen", ":0", "--spec-secret-file", secret)
	found := regexp.MustCompile(`URLs at http://\*\.localhost:(\d+)`).FindStringSubmatch(s.log())
	if found == nil {
		t.Fatal(s.log())
	}
	resp, err := http.Get("http://127.0.0.1:" + found[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d", resp.StatusCode)
	}
}
