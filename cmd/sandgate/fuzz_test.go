package main

import (
	"strings"
	"testing"
)

// A side of a copy is in a sandbox only where it names one, and loses nothing.
func FuzzParseLocation(f *testing.F) {
	for _, text := range []string{"box:/a", "./a:b", `C:\x`, "-", ":", "a:", "a:b:c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := parseLocation(text)
		if p.sandbox == "" && p.path != text || p.sandbox != "" && p.sandbox+":"+p.path != text {
			t.Errorf("%q: %+v", text, p)
		}
		if strings.ContainsAny(p.sandbox, "/\\: ") {
			t.Errorf("%q: the id %q", text, p.sandbox)
		}
	})
}

// A size is refused or positive.
func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"1", "512MiB", "1.5G", "-1", "NaN", "Inf", "1e9", "0x10", " 1 k "} {
		f.Add(text)
	}
	cmd := (&cli{}).versionCommand()
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseSize(cmd, "memory", text); text != "" && err == nil && n < 1 {
			t.Errorf("%q: %d", text, n)
		}
	})
}
