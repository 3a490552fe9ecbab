package local_test

import (
	"testing"

	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestCheckOptions(t *testing.T) {
	providertest.CheckOptions(t, new(local.Provider), []providertest.OptionsCase{
		{},
		{Options: `{"writable_root": true, "host_network": true}`},
		{Options: `{"writeable_root": true}`, Want: `provider_options: unknown field "writeable_root"; there are root, host_network, writable_root, pull: invalid`},
		{Options: `{"host_network": "yes"}`, Want: "provider_options: host_network: must be true or false, not a string: invalid"},
		{Options: `{"root": true}`, Allowed: []string{"root"}},
		{Allowed: []string{"writable_root"}, Want: `allow_options: unknown field "writable_root"; there are root: invalid`},
	})
}
