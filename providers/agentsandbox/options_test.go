package agentsandbox

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func TestCheckOptions(t *testing.T) {
	for _, c := range []struct {
		options string
		allowed []string
		want    string
	}{
		{},
		{options: `{"pool": "p"}`, allowed: []string{"container"}},
		{options: `{"existing_claims": ["a-*"]}`, allowed: []string{"existing_claim"}},
		{options: `{"sandbox_templat": "t"}`, want: `provider_options: unknown field "sandbox_templat"; there are pool, sandbox_template, container, `},
		{options: `{"pool": 3}`, want: "provider_options: pool: must be a string, not a number: invalid"},
		{options: `{"pool": "p", "volume_claim_templates": [{"name": "v", "size": "1Gi"}]}`, want: `provider_options: volume_claim_templates: unknown field "size"`},
		{options: `{"pool": "p", "volume_claim_templates": [{"name": "v"}]}`, want: "provider_options: volume_claim_templates: a name and a positive storage are required: invalid"},
		{options: `{"pool": "p", "sandbox_template": "t"}`, want: "provider_options: pool and sandbox_template exclude each other: invalid"},
		{options: `{"container": "c"}`, want: "provider_options: neither a pool nor a sandbox_template is named: invalid"},
		{options: `{"existing_claims": ["[a"]}`, allowed: []string{"existing_claim"}, want: `provider_options: existing_claims and existing_sandboxes: "[a" is no pattern`},
		// A request can still say it.
		{options: `{"container": "c"}`, allowed: []string{"pool"}},
		{options: `{"pool": "p"}`, allowed: []string{"existing_claims"}, want: `allow_options: unknown field "existing_claims"; there are pool, `},
	} {
		err := new(Provider).CheckOptions(json.RawMessage(c.options), c.allowed)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.options, err)
			}
			continue
		}
		if !errors.Is(err, providers.ErrInvalid) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s, %q: %v, want %s", c.options, c.allowed, err, c.want)
		}
	}
}
