//go:build linux

package userland

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestUserlandImageHasTheSameEnvironment: in the image of deploy/userland pip, npm and uv
// install as in a local sandbox without an image, and it has the uv that is tested.
func TestUserlandImageHasTheSameEnvironment(t *testing.T) {
	data, err := os.ReadFile("../../../deploy/userland/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "\nENV ")
	if !found {
		t.Fatal("no ENV instruction")
	}
	text, _, _ = strings.Cut(text, "\nUSER")
	got := make(map[string]string)
	for _, field := range strings.Fields(strings.ReplaceAll(text, "\\\n", "")) {
		name, value, _ := strings.Cut(field, "=")
		got[name] = value
	}
	want := installers("/home/sandbox", Path)
	// Debian's npm has a fixed one.
	delete(want, "NPM_CONFIG_GLOBALCONFIG")
	want["LANG"] = "C.UTF-8"
	if !maps.Equal(got, want) {
		t.Errorf("the image has %q, want %q", got, want)
	}
	pin, err := os.ReadFile("../../../tools/python/uv.txt")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^ARG UV_VERSION=(.+)$`).FindSubmatch(data)
	if version == nil || "uv=="+string(version[1]) != strings.TrimSpace(string(pin)) {
		t.Errorf("the image has uv %q, the test of installers %q", version, pin)
	}
}
