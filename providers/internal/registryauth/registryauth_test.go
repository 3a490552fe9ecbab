package registryauth

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

func TestParse(t *testing.T) {
	const file = `{"auths": {"` + authn.DefaultAuthKey + `": {"auth": "aHViOnNlY3JldA=="}, "private.example": {"auth": "YTpiOmM="}, "helper.example": {}, "bad.example": {"auth": "eA=="}}}`
	for domain, want := range map[string]string{"docker.io": "hub secret", "private.example": "a b:c", "helper.example": "", "none.example": ""} {
		auth, err := Parse([]byte(file), domain)
		got := ""
		if auth != nil {
			got = auth.Username + " " + auth.Password
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", domain, got, err, want)
		}
	}
	for _, bad := range []string{"{", `[]`} {
		if _, err := Parse([]byte(bad), "private.example"); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
	if _, err := Parse([]byte(file), "bad.example"); err == nil || strings.Contains(err.Error(), "eA==") {
		t.Errorf("malformed credentials: %v", err)
	}
}
