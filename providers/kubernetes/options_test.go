package kubernetes

import (
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestCheckOptions(t *testing.T) {
	providertest.CheckOptions(t, new(Provider), []providertest.OptionsCase{
		{},
		{Options: `{"runtime_class_name": "gvisor", "pod_overrides": {"hostname": "x"}}`, Allowed: []string{"node_selector"}},
		{Options: `{"pod_overrides": null}`},
		{Options: `{"runtime_class": "gvisor"}`, Want: `provider_options: unknown field "runtime_class"; there are image_pull_policy, `},
		{Options: `{"tolerations": [{"kez": "x"}]}`, Want: `provider_options: tolerations: unknown field "kez"`},
		{Options: `{"node_selector": "a=b"}`, Want: "provider_options: node_selector: must be an object of strings, not a string: invalid"},
		{Options: `{"memory_request": "a lot"}`, Want: "provider_options: memory_request: quantities must match"},
		{Options: `{"image_pull_policy": "Sometimes"}`, Want: `provider_options: image_pull_policy: "Sometimes" is none of Always, IfNotPresent, Never: invalid`},
		{Options: `{"pod_overrides": {"containerz": []}}`, Want: `provider_options: pod_overrides: unknown field "containerz"; there are volumes, `},
		{Options: `{"pod_overrides": []}`, Want: "provider_options: pod_overrides: must be an object, not a list: invalid"},
		{Options: `{"namespace_quota": {"pods": "1"}}`, Want: "provider_options: namespace_quota and namespace_limits: need namespace_per_sandbox: invalid"},
		// A request can still say it.
		{Options: `{"namespace_quota": {"pods": "1"}}`, Allowed: []string{"namespace_per_sandbox"}},
		{Allowed: []string{"node_selector", "pod_overrides"}, Want: "allow_options: pod_overrides: only the template may set it, never a request: invalid"},
		{Allowed: []string{"volumes"}, Want: "allow_options: volumes: only the template"},
		{Allowed: []string{"service_account"}, Want: "allow_options: service_account: only the template"},
		{Allowed: []string{"init_containers"}, Want: "allow_options: init_containers: only the template"},
		{Allowed: []string{"secrets"}, Want: "allow_options: secrets: only the template"},
		{Options: `{"pod_overrides": {"hostNetwork": true}}`, Want: "provider_options: the restricted Pod Security Standard does not allow: host namespaces (hostNetwork=true): invalid"},
		// A request can still set what the overrides need.
		{Options: `{"pod_overrides": {"containers": [{"name": "sandbox", "securityContext": {"readOnlyRootFilesystem": false}}]}}`, Allowed: []string{"writable_root"}},
		{Allowed: []string{"node_selector", "node_selectors"}, Want: `allow_options: unknown field "node_selectors"; there are image_pull_policy, `},
	})
}

func TestRootIsRefused(t *testing.T) {
	providertest.RefusesRoot(t, &Provider{}, func(spec providers.Spec) error {
		_, err := decodeOptions(spec)
		return err
	})
}
