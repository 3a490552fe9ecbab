package agentsandbox

import (
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestCheckOptions(t *testing.T) {
	providertest.CheckOptions(t, new(Provider), []providertest.OptionsCase{
		{},
		{Options: `{"pool": "p"}`, Allowed: []string{"container"}},
		{Options: `{"existing_claims": ["a-*"]}`, Allowed: []string{"existing_claim"}},
		{Options: `{"sandbox_templat": "t"}`, Want: `provider_options: unknown field "sandbox_templat"; there are pool, sandbox_template, container, `},
		{Options: `{"pool": 3}`, Want: "provider_options: pool: must be a string, not a number: invalid"},
		{Options: `{"pool": "p", "volume_claim_templates": [{"name": "v", "size": "1Gi"}]}`, Want: `provider_options: volume_claim_templates: unknown field "size"`},
		{Options: `{"pool": "p", "volume_claim_templates": [{"name": "v"}]}`, Want: "provider_options: volume_claim_templates: a name and a positive storage are required: invalid"},
		{Options: `{"pool": "p", "sandbox_template": "t"}`, Want: "provider_options: pool and sandbox_template exclude each other: invalid"},
		{Options: `{"container": "c"}`, Want: "provider_options: neither a pool nor a sandbox_template is named: invalid"},
		{Options: `{"existing_claims": ["[a"]}`, Allowed: []string{"existing_claim"}, Want: `provider_options: existing_claims and existing_sandboxes: "[a" is no pattern`},
		// A request can still say it.
		{Options: `{"container": "c"}`, Allowed: []string{"pool"}},
		{Options: `{"pool": "p"}`, Allowed: []string{"existing_claims"}, Want: `allow_options: unknown field "existing_claims"; there are pool, `},
	})
}

func TestRootIsRefused(t *testing.T) {
	providertest.RefusesRoot(t, &Provider{}, func(spec providers.Spec) error {
		_, err := decodeOptions(spec)
		return err
	})
}
