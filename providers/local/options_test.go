package local_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
)

func TestCheckOptions(t *testing.T) {
	for _, c := range []struct {
		options string
		allowed []string
		want    string
	}{
		{},
		{options: `{"images": ["oci:/images/*"], "host_network": true}`},
		{options: `{"writeable_root": true}`, want: `provider_options: unknown field "writeable_root"; there are images, host_network, writable_root: invalid`},
		{options: `{"host_network": "yes"}`, want: "provider_options: host_network: must be true or false, not a string: invalid"},
		{options: `{"images": ["oci:/[a"]}`, want: `provider_options: images: "oci:/[a" is no pattern`},
		{allowed: []string{"writable_root"}, want: `allow_options: "writable_root": the local provider takes no options of requests: invalid`},
	} {
		err := new(local.Provider).CheckOptions(json.RawMessage(c.options), c.allowed)
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
