package providertest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

// OptionsCase is a part of a template, and what a provider says of it.
type OptionsCase struct {
	Options string   // provider_options as JSON, or empty
	Allowed []string // allow_options
	// Want is what the error begins with. Empty: there is none.
	Want string
}

// CheckOptions holds a provider to what it says of templates, and to an error
// that wraps ErrInvalid.
func CheckOptions(t *testing.T, p providers.OptionsChecker, cases []OptionsCase) {
	t.Helper()
	for _, c := range cases {
		err := p.CheckOptions(json.RawMessage(c.Options), c.Allowed)
		if c.Want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.Options, err)
			}
			continue
		}
		if !errors.Is(err, providers.ErrInvalid) || !strings.HasPrefix(err.Error(), c.Want) {
			t.Errorf("%s, %q: %v, want %s", c.Options, c.Allowed, err, c.Want)
		}
	}
}
