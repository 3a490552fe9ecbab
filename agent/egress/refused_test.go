package egress

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestRefusedMessage(t *testing.T) {
	s := &Service{}
	if got := s.RefusedMessage(s.Refused()); got != "" {
		t.Errorf("nothing was refused: %q", got)
	}
	s.refused.add("old.example:443", "old")
	before := s.Refused()
	for range 50 {
		s.refused.add("a.example:443", "connection to a.example:443 denied: \n\x1b")
	}
	s.refused.add("b.example", strings.Repeat("x", 2000))
	s.refused.add("c.example:1", "c")
	s.refused.add("d.example:1", "d")
	got := s.RefusedMessage(before)
	for _, want := range []string{": connection to a.example:443 denied: ??; b.example: xxx", "; c.example:1: c; refused attempts: 53"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if strings.Contains(got, "old") || strings.Contains(got, "d.example") || len(got) > 1000 {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	// Every program can make the agent remember only so much.
	for i := range 1000 {
		s.refused.add(fmt.Sprintf("%d.example", i), "no")
	}
	if len(s.refused.last) != maxRefused {
		t.Errorf("%d are remembered", len(s.refused.last))
	}
}

// What the server refuses a program of the proxy counts.
func TestRefusalsOfTheProxyAreCounted(t *testing.T) {
	s, client := start(t, time.Second)
	u := &upstream{client: client}
	u.attach(t)
	proxy := &url.URL{Scheme: "http", Host: s.cfg.Proxy}
	web := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
	r, err := web.Get("http://refused.example/")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	if got := s.RefusedMessage(0); s.Refused() != 1 || !strings.Contains(got, "refused.example:80") {
		t.Errorf("%d: %q", s.Refused(), got)
	}
}
