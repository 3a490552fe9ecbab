package main

import (
	"strings"
	"testing"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestURL(t *testing.T) {
	server := fake.Start(t, &fake.Server{})
	must(t, server, "create", "box")
	for args, want := range map[string]string{
		"url box 3000":                  "http://3000-x.localhost/?sandgate_token=t\n",
		"url box /workspace/a":          "http://file-x.localhost/workspace/a?sandgate_token=t\n",
		"url --put --ttl 2m box /tmp/b": "http://file-x.localhost/tmp/b?sandgate_token=t\n",
	} {
		if got := must(t, server, strings.Fields(args)...); got != want {
			t.Errorf("%s: %q", args, got)
		}
	}
	if got := must(t, server, "url", "box", "80", "--output", "json"); !strings.Contains(got, `"baseUrl": "http://80-x.localhost/"`) {
		t.Error(got)
	}
	for args, want := range map[string]string{
		"url box":               "accepts 2 arg",
		"url box x":             "neither a port",
		"url box 0":             "neither a port",
		"url box 65536":         "neither a port",
		"url --put box 80":      "--put is for a path",
		"url --ttl 0s box 80":   "must be positive",
		"url --ttl soon box 80": "invalid argument",
		"url none 80":           "SANDBOX_NOT_FOUND",
	} {
		if got := run(t.Context(), server, "", strings.Fields(args)...); got.code != failed || !strings.Contains(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: %+v", args, got)
		}
	}
}
