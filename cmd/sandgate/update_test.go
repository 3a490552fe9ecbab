package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestUpdate(t *testing.T) {
	server := fake.Start(t, &fake.Server{})
	must(t, server, "create", "box", "--label", "team=x", "--label", "old=yes")
	if got := must(t, server, "update", "box", "--label", "state=done", "--remove-label", "old", "--ttl", "2h", "--idle-ttl", "-1s"); got != "box\n" {
		t.Errorf("got %q", got)
	}
	got := must(t, server, "info", "box", "--output", "json")
	for _, want := range []string{`"state": "done"`, `"team": "x"`, `"ttl": "7200s"`, `"idleTtl": "0s"`} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s in %s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Errorf("the label was not removed: %s", got)
	}
	for args, want := range map[string]string{
		"update box":                  "give a flag that changes something; see: sandgate update --help",
		"update box --output json":    "give a flag that changes something",
		"update box --idle-ttl 0s":    "more than 0",
		"update --renew":              "give ids",
		"update none --renew":         "SANDBOX_NOT_FOUND",
		"update box --label broken":   "KEY=VALUE",
		"update box --ttl tomorrow":   "invalid argument",
		"cleanup --max-idle 0s":       "more than 0",
		"cleanup box":                 "unknown command",
		"create x --option a=[1":      "--option a is not JSON",
		"cleanup --label broken":      "KEY=VALUE",
		"cleanup --max-idle sometime": "invalid argument",
	} {
		if got := run(t.Context(), server, "", strings.Fields(args)...); got.code != failed || !strings.Contains(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestCleanup(t *testing.T) {
	server := fake.Start(t, &fake.Server{Stuck: "stuck"})
	for _, id := range []string{"one", "stuck", "two"} {
		must(t, server, "create", id)
	}
	if got := must(t, server, "cleanup"); got != "" {
		t.Errorf("without a time: %q", got)
	}
	got := run(t.Context(), server, "", "cleanup", "--max-idle", "1ns", "--dry-run")
	if got.code != 0 || got.stdout != "one\nstuck\ntwo\n" {
		t.Errorf("dry run: %+v", got)
	}
	got = run(t.Context(), server, "", "cleanup", "--max-idle", "1ns")
	if got.code != failed || got.stdout != "one\ntwo\n" || got.stderr != "sandgate: the sandbox stuck was not deleted: it is stuck\n" {
		t.Errorf("got %+v", got)
	}
	if got := must(t, server, "ls", "--quiet"); got != "stuck\n" {
		t.Errorf("left: %q", got)
	}
}

// Options that are lists or objects reach the provider as such.
func TestOptionsThatAreListsOrObjectsReachTheProvider(t *testing.T) {
	m, err := options((&cli{}).versionCommand(), []string{`volumes=[{"name": "data"}]`, `o={"a": true}`, "n=2", "b=false", "s=text"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := protojson.Marshal(m)
	if got := strings.ReplaceAll(string(raw), " ", ""); err != nil || got != `{"b":false,"n":2,"o":{"a":true},"s":"text","volumes":[{"name":"data"}]}` {
		t.Errorf("%s, %v", got, err)
	}
}
