package agent

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/agent/files"
	"github.com/sandgate/sandgate/agent/landlock"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// What the kernel's Landlock cannot hold is said with the command's end.
func TestWriteRulesSayWhatIsNotBound(t *testing.T) {
	kernel := landlock.ABI
	if kernel() < 3 {
		t.Skip("the kernel's Landlock cannot do all that is asked for")
	}
	t.Cleanup(func() { landlock.ABI = kernel })
	svc, err := files.New(files.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close() })
	a := &Agent{Service: svc}
	dir := t.TempDir()
	const noLandlock, truncated, parent = "no Landlock", "older than Linux 6.2", "parent directory"
	for _, tt := range []struct {
		abi   int
		deny  string
		said  []string
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
		rules, unbound, err := a.writeRules(&agentv1.ExecuteRequest{
			Confinement: &agentv1.Confinement{Policies: []*sandboxv1.AccessPolicy{policy}},
		})
		if err != nil || (rules != nil) != tt.rules || (unbound == "") != (len(tt.said) == 0) {
			t.Errorf("ABI %d, deny %q: %v, %q, %v", tt.abi, tt.deny, rules, unbound, err)
		}
		if rules != nil {
			_ = rules.Close()
		}
		for _, said := range []string{noLandlock, truncated, parent} {
			want := false
			for _, s := range tt.said {
				want = want || s == said
			}
			if strings.Contains(unbound, said) != want {
				t.Errorf("ABI %d, deny %q: %q, says %q: want %v", tt.abi, tt.deny, unbound, said, want)
			}
		}
	}
}
