package sealed

import (
	"fmt"
	"strings"
	"testing"
)

func TestSecretText(t *testing.T) {
	s := NewSecret()
	back, err := ParseSecret(s.Text())
	if err != nil || back != s || len(s.Text()) != TextSize {
		t.Errorf("%v, %v", back == s, err)
	}
	if NewSecret() == s {
		t.Error("two secrets are equal")
	}
	for _, bad := range []string{"", "00", s.Text() + "0", s.Text()[1:], strings.Repeat("g", TextSize), s.Text()[:63] + "\n"} {
		if _, err := ParseSecret(bad); err == nil {
			t.Errorf("%q was taken", bad)
		} else if len(bad) > 2 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error shows it: %v", err)
		}
	}
}

func TestSecretDoesNotPrint(t *testing.T) {
	s := NewSecret()
	for _, format := range []string{"%v", "%s", "%+v", "%#v", "%q", "%x"} {
		if said := fmt.Sprintf(format, s); strings.Contains(said, s.Text()[:8]) || strings.Contains(said, fmt.Sprint(s.bytes[0], " ", s.bytes[1])) {
			t.Errorf("%s prints %s", format, said)
		}
	}
}

func TestEachEndHasItsOwnKey(t *testing.T) {
	s := NewSecret()
	ours, err := s.key(dialer)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := s.key(listener)
	if err != nil || ours.Equal(theirs) {
		t.Errorf("the keys are equal: %v", err)
	}
	again, err := s.key(dialer)
	if err != nil || !ours.Equal(again) {
		t.Errorf("a key is another the second time: %v", err)
	}
}

func FuzzParseSecret(f *testing.F) {
	f.Add(NewSecret().Text())
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err == nil && s.Text() != strings.ToLower(text) {
			t.Errorf("%q became %q", text, s.Text())
		}
		if err != nil && s != (Secret{}) {
			t.Error("an error and a secret")
		}
	})
}
