package process

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/agent/files"
	"github.com/sandgate/sandgate/agent/landlock"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A limit that the kernel's Landlock can't enforce is named in the command's exit
// message.
func TestWriteRulesNameUnboundPrefixes(t *testing.T) {
	kernel := landlock.ABI
	if kernel() < 3 {
		t.Skip("the kernel's Landlock does not support all rules of this test")
	}
	t.Cleanup(func() { landlock.ABI = kernel })
	svc := files.New(files.Config{})
	t.Cleanup(svc.Close)
	a := &Service{cfg: Config{WritePrefixes: svc.WritePrefixes}}
	dir := t.TempDir()
	const noLandlock, truncated, parent = "no Landlock", "older than Linux 6.2", "parent directory"
	for _, tt := range []struct {
		abi   int
		deny  string
		names []string
		rules bool
	}{
		{0, "", []string{noLandlock}, false},
		{1, "", []string{noLandlock}, false},
		{2, "", []string{truncated}, true},
		{2, "below", []string{parent, truncated}, true},
		{3, "below", []string{parent}, true},
		{3, "", nil, true},
		{kernel(), "", nil, true},
	} {
		landlock.ABI = func() int { return tt.abi }
		policy := &sandboxv1.AccessPolicy{WriteAllowPrefixes: []string{dir}}
		if tt.deny != "" {
			policy.WriteDenyPrefixes = []string{filepath.Join(dir, tt.deny)}
		}
		rules, unbound, err := a.writeRules([]*sandboxv1.AccessPolicy{policy})
		if err != nil || (rules != nil) != tt.rules || (unbound == "") != (len(tt.names) == 0) {
			t.Errorf("ABI %d, deny %q: %v, %q, %v", tt.abi, tt.deny, rules, unbound, err)
		}
		if rules != nil {
			_ = rules.Close()
		}
		for _, text := range []string{noLandlock, truncated, parent} {
			want := false
			for _, s := range tt.names {
				want = want || s == text
			}
			if strings.Contains(unbound, text) != want {
				t.Errorf("ABI %d, deny %q: %q, contains %q: want %v", tt.abi, tt.deny, unbound, text, want)
			}
		}
	}
}
