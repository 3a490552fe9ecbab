package docker

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestCheckOptions(t *testing.T) {
	providertest.CheckOptions(t, &Provider{}, []providertest.OptionsCase{
		{},
		{Options: `{"user": "image", "runtime": "runsc", "writable_root": true, "network": "agents", "gpus": -1, "pull": "never"}`},
		{Options: `{"users": "1:1"}`, Want: `provider_options: unknown field "users"`},
		{Options: `{"user": "1000"}`, Want: `provider_options: user: "1000" is neither`},
		{Options: `{"user": "0:0"}`, Want: `provider_options: user: "0:0" is neither`},
		{Options: `{"user": "00:1"}`, Want: `provider_options: user: "00:1" is neither`},
		{Options: `{"network": "host"}`, Want: `provider_options: network: "host"`},
		{Options: `{"network": "container:other"}`, Want: `provider_options: network: "container:other"`},
		{Options: `{"gpus": -2}`, Want: `provider_options: gpus: -2`},
		{Options: `{"pull": "always"}`, Want: `provider_options: pull: "always"`},
		{Allowed: []string{"gpus"}, Want: `allow_options: unknown field "gpus"; there are root`},
	})
}

func TestSpecsThatCannotBe(t *testing.T) {
	for what, c := range map[string]struct {
		spec providers.Spec
		want error
	}{
		"no network mode":       {providers.Spec{}, providers.ErrUnsupported},
		"network proxy":         {providers.Spec{Network: providers.NetworkProxy}, nil},
		"an option":             {providers.Spec{Network: providers.NetworkNone, Options: json.RawMessage(`{"gpus": 1}`)}, providers.ErrInvalid},
		"a relative directory":  {providers.Spec{Network: providers.NetworkNone, WorkingDirectory: "work"}, providers.ErrInvalid},
		"too little memory":     {providers.Spec{Network: providers.NetworkNone, Resources: providers.Resources{MemoryBytes: 1 << 20}}, providers.ErrInvalid},
		"nothing special":       {providers.Spec{Network: providers.NetworkNone}, nil},
		"the network of Docker": {providers.Spec{Network: providers.NetworkFull}, nil},
	} {
		if _, err := decodeOptions(c.spec); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

func TestRootIsRefused(t *testing.T) {
	providertest.RefusesRoot(t, &Provider{}, func(spec providers.Spec) error {
		_, err := decodeOptions(spec)
		return err
	})
}
