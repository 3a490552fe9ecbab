package kubernetes

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
		{options: `{"runtime_class_name": "gvisor", "pod_overrides": {"hostname": "x"}}`, allowed: []string{"node_selector"}},
		{options: `{"pod_overrides": null}`},
		{options: `{"runtime_class": "gvisor"}`, want: `provider_options: unknown field "runtime_class"; there are image_pull_policy, `},
		{options: `{"tolerations": [{"kez": "x"}]}`, want: `provider_options: tolerations: unknown field "kez"`},
		{options: `{"node_selector": "a=b"}`, want: "provider_options: node_selector: must be an object of strings, not a string: invalid"},
		{options: `{"memory_request": "a lot"}`, want: "provider_options: memory_request: quantities must match"},
		{options: `{"image_pull_policy": "Sometimes"}`, want: `provider_options: image_pull_policy: "Sometimes" is none of Always, IfNotPresent, Never: invalid`},
		{options: `{"pod_overrides": {"containerz": []}}`, want: `provider_options: pod_overrides: unknown field "containerz"; there are volumes, `},
		{options: `{"pod_overrides": []}`, want: "provider_options: pod_overrides: must be an object, not a list: invalid"},
		{options: `{"namespace_quota": {"pods": "1"}}`, want: "provider_options: namespace_quota and namespace_limits: need namespace_per_sandbox: invalid"},
		// A request can still say it.
		{options: `{"namespace_quota": {"pods": "1"}}`, allowed: []string{"namespace_per_sandbox"}},
		{allowed: []string{"node_selector", "node_selectors"}, want: `allow_options: unknown field "node_selectors"; there are image_pull_policy, `},
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
