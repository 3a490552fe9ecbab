package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/clients/go/fake"
	"github.com/sandgate/sandgate/test/upstream"
)

// A case fails on the fake server: the command reports it, goes on, and deletes
// what it created.
func TestConformance(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	got := run(t.Context(), server, "", "conformance", "--seed", "7", "--run", "^(C6 every byte|C24 fork bomb)$")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != 1 || got.stderr != "" || !strings.Contains(lines[0], "2 cases, seed 7") {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(got.stdout, "\nFAIL C6 every byte ") || !strings.Contains(got.stdout, "\nskip C24 fork bomb ") {
		t.Errorf("it printed %s", got.stdout)
	}
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "0 ok, 1 failed, 1 skipped in ") || !strings.HasSuffix(last, "contracts covered: none; seed 7") {
		t.Errorf("the summary is %q", last)
	}
	if left := must(t, server, "ls", "--quiet"); left != "" {
		t.Errorf("left behind: %q", left)
	}
	got = run(t.Context(), server, "", "conformance", "--run", "C24 fork bomb", "--output", "json")
	decoder := json.NewDecoder(strings.NewReader(got.stdout))
	var one struct {
		Case, Outcome string
		Contract      int
		Reasons       []string
	}
	var last struct {
		Left    []string
		Summary struct{ Skipped int }
	}
	if err := decoder.Decode(&one); err != nil || one.Case != "C24_fork_bomb" || one.Outcome != "skip" || one.Contract != 24 || len(one.Reasons) != 1 {
		t.Errorf("%+v, %v", one, err)
	}
	if err := decoder.Decode(&last); err != nil || last.Summary.Skipped != 1 || len(last.Left) > 0 || got.code != 0 {
		t.Errorf("%+v, %v", last, err)
	}
}

func TestConformanceWithoutRunning(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	if got := must(t, server, "conformance", "--list", "--run", "C2"); got != "C2 another incarnation is refused\n" {
		t.Errorf("got %q", got)
	}
	for _, args := range []string{"--run (", "--run no-such-case", "--group nothing", "--part 4/3", "--part x", "--part 0/3", "--fraction 0", "--fraction 2", "--scale 0", "--case-timeout 0s", "more",
		"--upstream-cert a", "--upstream h.example:1 --upstream-cert a", "--upstream-cert a --upstream-key b", "--upstream h.example:1 --upstream-cert /none --upstream-key /none"} {
		if got := run(t.Context(), server, "", append([]string{"conformance"}, strings.Fields(args)...)...); got.code != 125 || strings.Count(got.stderr, "\n") != 1 || got.stdout != "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(signalled{2})
	if got := run(ctx, server, "", "conformance"); got.code != 130 {
		t.Errorf("after an interrupt: %+v", got)
	}
}

// The files of --upstream-cert and --upstream-key are the suite's certificate.
func TestConformanceUpstream(t *testing.T) {
	certificate := upstream.Certificate(t, x509.NewCertPool(), "upstream.test")
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := conformanceRun{upstream: "upstream.test:1", upstreamCert: filepath.Join(dir, "cert"), upstreamKey: filepath.Join(dir, "key")}
	for name, block := range map[string]*pem.Block{
		r.upstreamCert: {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}, r.upstreamKey: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opts, err := r.options()
	if err != nil || opts.Upstream != r.upstream || !bytes.Equal(opts.UpstreamCertificate.Certificate[0], certificate.Certificate[0]) {
		t.Errorf("got %+v, %v", opts, err)
	}
	r.upstreamKey = r.upstreamCert
	if _, err := r.options(); err == nil || !strings.Contains(err.Error(), "--upstream-key") {
		t.Errorf("a certificate as key: %v", err)
	}
}

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{"none": nil, "1": {1}, "1, 2": {1, 2}, "1-3, 5, 7, 8": {1, 2, 3, 5, 7, 8}} {
		if got := ranges(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}
