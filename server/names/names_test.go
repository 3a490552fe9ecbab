package names

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

func TestSubstrateNames(t *testing.T) {
	valid := regexp.MustCompile(`^sg-[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$`)
	seen := make(map[string][2]string)
	rapid.Check(t, func(t *rapid.T) {
		tenant := rapid.String().Draw(t, "tenant")
		id := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}`).Draw(t, "id")
		name := Substrate(tenant, id)
		if !valid.MatchString(name) || len(name) > 63 {
			t.Fatalf("%q is no DNS label", name)
		}
		if other, ok := seen[name]; ok && other != [2]string{tenant, id} {
			t.Fatalf("%q for %q and %q", name, other, [2]string{tenant, id})
		}
		seen[name] = [2]string{tenant, id}
	})
	if got := Substrate("t", "My_Thread.1"); !regexp.MustCompile(`^sg-my-thread-1-[a-z2-7]{20}$`).MatchString(got) {
		t.Errorf("got %q", got)
	}
	if Substrate("ab", "c") == Substrate("a", "bc") {
		t.Error("tenant and id run into each other")
	}
}
