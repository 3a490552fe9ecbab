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

// RefusesRoot holds a provider that cannot do the option root of others: a template may
// leave it to requests, and Create answers with an error that wraps ErrUnsupported and not
// ErrInvalid. options is what Create does with the options of a spec.
func RefusesRoot(t *testing.T, p providers.OptionsChecker, options func(providers.Spec) error) {
	t.Helper()
	if err := p.CheckOptions(nil, []string{"root"}); err != nil {
		t.Errorf("left to requests: %v", err)
	}
	root := json.RawMessage(`{"root": true}`)
	for what, spec := range map[string]providers.Spec{"a request": {Options: root}, "a template": {TemplateOptions: root}} {
		spec.Network = providers.NetworkNone
		if err := options(spec); !errors.Is(err, providers.ErrUnsupported) || errors.Is(err, providers.ErrInvalid) || !strings.Contains(err.Error(), "use the local provider") {
			t.Errorf("%s with root: %v", what, err)
		}
	}
}
