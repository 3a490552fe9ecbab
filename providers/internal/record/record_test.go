package record

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/providers"
)

func TestSandboxKeepsNoSecrets(t *testing.T) {
	env := map[string]string{"KEY": "secret"}
	s := New(providers.Spec{ID: "a", Env: env})
	if diff := cmp.Diff(map[string]string{"KEY": ""}, s.Spec.Env); diff != "" {
		t.Errorf("stored env (-want +got):\n%s", diff)
	}
	if env["KEY"] != "secret" {
		t.Error("the caller's env was changed")
	}
	if New(providers.Spec{}).Spec.Env != nil {
		t.Error("an env appeared")
	}
}

func TestApply(t *testing.T) {
	s := New(providers.Spec{Labels: map[string]string{"a": "1"}})
	later, ttl := s.LastActivity.Add(time.Second), time.Hour
	s.Apply(providers.Change{SetLabels: map[string]string{"b": "2"}, RemoveLabels: []string{"a"}, TTL: &ttl, LastActivity: later})
	want := Sandbox{Spec: providers.Spec{Labels: map[string]string{"b": "2"}, TTL: time.Hour}, CreateTime: s.CreateTime, LastActivity: later}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Sandbox
	if err := json.Unmarshal(data, &back); err != nil || !cmp.Equal(s, back) {
		t.Errorf("read back: %+v, %v", back, err)
	}
}

func TestTokens(t *testing.T) {
	const f = Tokens("test1")
	for _, position := range []string{"", "sg-a", "a:b", "\x00\xff"} {
		if got, err := f.Decode(f.Encode(position)); err != nil || got != position {
			t.Errorf("%q came back as %q, %v", position, got, err)
		}
	}
	for _, bad := range []string{"x", "!", Tokens("test2").Encode("a"), "dGVzdDE6"} {
		if got, err := f.Decode(bad); !errors.Is(err, providers.ErrTokenInvalid) {
			t.Errorf("token %q: %q, %v", bad, got, err)
		}
	}
}

func TestNames(t *testing.T) {
	if a, b := Digest("ab", "c"), Digest("a", "bc"); a == b || len(a) != 20 {
		t.Errorf("digests %q and %q", a, b)
	}
	// Labels of sandboxes that exist have it.
	if got := Digest("tenant"); got != "5hninu2rz6nhmqwyyuaz" {
		t.Errorf("the digest of one text: %q", got)
	}
	if a, b := Random(), Random(); a == b || len(a) != 16 {
		t.Errorf("random names %q and %q", a, b)
	}
}
