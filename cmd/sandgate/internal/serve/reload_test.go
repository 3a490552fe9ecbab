package serve

import (
	"context"
	"os"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server/authn"
)

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
}

// A changed file applies, a wrong one changes nothing and is reported, and keys that
// need a restart are named.
func TestReloadAppliesAChangedFileAndRejectsAWrongOne(t *testing.T) {
	file := writeFile(t, "c.yaml", "log: {level: info}\nquotas: {tenant: {max_streams: 1}}\n")
	s := startServer(t, "--config", file, "--admin-listen", "unix://"+t.TempDir()+"/a")
	info := func() *sandgate.ServerInfo {
		i, err := s.client.ServerInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	limit := func() int64 {
		if q := info().GetQuotas(); len(q) == 1 {
			return q[0].GetLimit()
		}
		return -1
	}
	if limit() != 1 {
		t.Fatalf("at the start: %v", info().GetQuotas())
	}
	rewrite(t, file, "log: {level: debug}\nquotas: {tenant: {max_streams: 2}}\ntemplates: [{name: default}, {name: other}]\nlimits: {default_ttl: 1h, max_forwards: 7}\n")
	s.await("the new quota", func() bool { return limit() == 2 })
	if i := info(); len(i.GetTemplates()) != 2 || i.GetLimits().GetDefaultTtl().AsDuration().Hours() != 1 {
		t.Errorf("%v", i)
	}
	s.await("a line about the restart", func() bool {
		return strings.Contains(s.log(), "wait for a restart") && strings.Contains(s.log(), "log.level") && strings.Contains(s.log(), "limits.max_forwards")
	})
	for name, bad := range map[string]string{
		"syntax":         "quotas: {tenant: {max_streams: ",
		"unknown key":    "quota: {}\n",
		"template":       "quotas: {tenant: {max_streams: 3}}\ntemplates: [{name: A}]\n",
		"option":         "quotas: {tenant: {max_streams: 3}}\ntemplates: [{name: default, provider_options: {none: 1}}]\n",
		"authentication": "quotas: {tenant: {max_streams: 3}}\nauth: {kubernetes: {audience: x, accounts: [{namespace: a, name: b}]}}\n",
	} {
		before := strings.Count(s.log(), "former content stays")
		rewrite(t, file, bad)
		s.await("the error of "+name, func() bool { return strings.Count(s.log(), "former content stays") > before })
		if limit() != 2 || len(info().GetTemplates()) != 2 {
			t.Errorf("%s: %v", name, info())
		}
	}
	rewrite(t, file, "log: {level: info}\nquotas: {tenant: {max_streams: 4}}\n")
	s.await("the repaired file", func() bool { return limit() == 4 })
}

// Another authenticator replaces the one in force, whose background work ends.
func TestReloadAuthenticator(t *testing.T) {
	tokens := func(name string) string {
		_, e, err := authn.NewToken(authn.Entry{Name: name, Tenant: name})
		if err != nil {
			t.Fatal(err)
		}
		return writeFile(t, name, "tokens: [{name: "+name+", tenant: "+name+", sha256: "+e.SHA256+"}]\n")
	}
	logger, err := newLogger("error", "text", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	one := config{Auth: authConfig{TokensFile: tokens("one")}}
	a, err := newAuthenticator(t.Context(), one, logger)
	if err != nil {
		t.Fatal(err)
	}
	first := a.current.Load()
	var ended context.Context
	first.stop, ended = stopping(first.stop)
	for name, bad := range map[string]config{"none": {}, "missing": {Auth: authConfig{TokensFile: "/nonexistent"}}} {
		if _, err := a.prepare(bad, logger); err == nil || a.current.Load() != first {
			t.Errorf("%s: %v", name, err)
		}
	}
	g, err := a.prepare(config{Auth: authConfig{TokensFile: tokens("two")}}, logger)
	if err != nil {
		t.Fatal(err)
	}
	a.current.Swap(g).stop()
	if ended.Err() == nil || a.current.Load() != g {
		t.Error("the former one is in force")
	}
	var none *authenticator
	if _, err := none.prepare(one, logger); err == nil {
		t.Error("authentication began without a restart")
	}
}

// stopping returns a function that ends a context too.
func stopping(stop func()) (func(), context.Context) {
	ctx, cancel := context.WithCancelCause(context.Background())
	return func() {
		stop()
		cancel(nil)
	}, ctx
}
