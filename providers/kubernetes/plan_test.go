package kubernetes

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sandgate/sandgate/providers"
)

func planOf(t *testing.T, spec providers.Spec) (*plan, error) {
	t.Helper()
	config, err := Config{AgentImage: "agent:1", Transport: TransportExec, Image: "image:1"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return (&Provider{config: config, account: "server"}).plan("name", spec)
}

func withOptions(options string) providers.Spec {
	return providers.Spec{
		Template: "x", Network: providers.NetworkNone, TemplateOptions: json.RawMessage(options),
	}
}

func podOf(t *testing.T, spec providers.Spec) *corev1.Pod {
	t.Helper()
	pl, err := planOf(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	pod := pl.makePod()
	if err := pl.finish(pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// With the network mode PROXY a pod's resolvers ask the agent, which may listen on
// every port, and the pod has no other right more than one without network.
func TestProxiedPodHasNoOtherRight(t *testing.T) {
	spec := withOptions("")
	without := podOf(t, spec)
	spec.Network = providers.NetworkProxy
	pod := podOf(t, spec)
	if dns := pod.Spec.DNSConfig; pod.Spec.DNSPolicy != corev1.DNSNone || dns == nil || !slices.Equal(dns.Nameservers, []string{"127.0.0.1"}) {
		t.Errorf("its names: %s %+v", pod.Spec.DNSPolicy, dns)
	}
	if !slices.Contains(pod.Spec.Containers[0].Command, "--egress") || slices.Contains(without.Spec.Containers[0].Command, "--egress") {
		t.Errorf("it runs %q, one without network %q", pod.Spec.Containers[0].Command, without.Spec.Containers[0].Command)
	}
	want := []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	if got := pod.Spec.SecurityContext.Sysctls; !slices.Equal(got, want) || len(without.Spec.SecurityContext.Sysctls) > 0 {
		t.Errorf("its sysctls: %v", got)
	}
	pod.Spec.SecurityContext.Sysctls = nil
	pod.Spec.Containers[0].Command = without.Spec.Containers[0].Command
	if !equality.Semantic.DeepEqual(pod.Spec, without.Spec) {
		t.Errorf("it differs in more: %+v", pod.Spec)
	}
}

// Each network mode without a route has a policy of its own, which selects its pods
// only.
func TestEachModeWithoutARouteHasItsPolicy(t *testing.T) {
	p := podIPProvider(t, func(c *Config) { c.AgentFrom = []string{"a/b=c"} })
	for mode, name := range map[providers.NetworkMode]string{providers.NetworkNone: "sandgate-network-none", providers.NetworkProxy: "sandgate-network-proxy"} {
		policy := p.denyAll(mode)
		if policy.Name != name || policy.Spec.PodSelector.MatchLabels[labelNetwork] != mode.String() || len(policy.Spec.Egress) > 0 ||
			len(policy.Spec.Ingress) != 1 || len(policy.Spec.PolicyTypes) != 2 {
			t.Errorf("%s: %+v", mode, policy)
		}
	}
}

func TestOptionsAreStrict(t *testing.T) {
	for _, c := range []struct{ options, names string }{
		{`{"no_such_option": 1}`, "no_such_option"},
		{`{"tolerations": [{"kez": "x"}]}`, "kez"},
		{`{"volumes": [{"name": "v", "emptyDirs": {}}]}`, "emptyDirs"},
		{`{"pod_overrides": {"containerz": []}}`, "containerz"},
		{`{"image_pull_policy": "Sometimes"}`, "image_pull_policy"},
		{`{"seccomp_profile": "Unconfined"}`, "seccomp_profile"},
		{`{"seccomp_profile": "Localhost/"}`, "seccomp_profile"},
		{`{"run_as_user": 0}`, "run_as_user"},
		{`{"fs_group": 0}`, "fs_group"},
		{`{"supplemental_groups": [5, 0]}`, "supplemental_groups"},
		{`{"disk_medium": "HugePages"}`, "disk_medium"},
		{`{"writable_paths": ["relative"]}`, "writable_paths"},
		{`{"labels": {"sandgate.dev/name": "x"}}`, "sandgate.dev"},
		{`{"annotations": {"label.sandgate.dev/x": "x"}}`, "sandgate.dev"},
		{`{"namespace_quota": {"pods": "1"}}`, "namespace_per_sandbox"},
		{`{"claim_templates": [{"name": "A_B", "mount_path": "/x", "storage": "1Gi"}]}`, "A_B"},
		{`{"claim_templates": [{"name": "a", "mount_path": "x", "storage": "1Gi"}]}`, "mount_path"},
		{`{"claim_templates": [{"name": "a", "mount_path": "/x"}]}`, "storage"},
		{`{"cpu_request": "a lot"}`, "template options"},
		{`{"start_timeout_seconds": -1}`, "start_timeout_seconds"},
		{`{} {}`, "more than one"},
	} {
		if _, err := planOf(t, withOptions(c.options)); !errors.Is(err, providers.ErrInvalid) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.options, err)
		}
	}
	spec := withOptions(`{"run_as_user": 5}`)
	spec.Options = json.RawMessage(`{"run_as_user": 7}`)
	if user := *podOf(t, spec).Spec.SecurityContext.RunAsUser; user != 7 {
		t.Errorf("a request's option does not go before the template's: %d", user)
	}
}

func TestMounts(t *testing.T) {
	spec := withOptions(`{
		"volumes": [{"name": "mine", "emptyDir": {}}], "volume_mounts": [{"name": "mine", "mountPath": "/tmp/"}],
		"claim_templates": [{"name": "work", "mount_path": "/workspace", "storage": "1Gi"}], "writable_paths": ["/opt/cache"]}`)
	spec.WorkingDirectory = "/home/sandbox/project"
	at := map[string]corev1.VolumeMount{}
	for _, m := range podOf(t, spec).Spec.Containers[0].VolumeMounts {
		path := strings.TrimSuffix(m.MountPath, "/")
		if _, twice := at[path]; twice {
			t.Errorf("%s is mounted twice", path)
		}
		at[path] = m
	}
	for path, volume := range map[string]string{
		"/tmp": "mine", "/workspace": "work", "/opt/cache": diskVolume, "/home/sandbox": diskVolume,
		"/home/sandbox/project": diskVolume, "/run": diskVolume, "/sandgate": agentVolume,
	} {
		if at[path].Name != volume {
			t.Errorf("%s is %q, want %q", path, at[path].Name, volume)
		}
	}
	if m := at["/home/sandbox/project"]; m.SubPath != "home/project" {
		t.Errorf("the working directory is %+v", m)
	}
	if !at["/sandgate"].ReadOnly {
		t.Error("the agent can be replaced")
	}
}

func TestArgumentsAreNotExpanded(t *testing.T) {
	spec := withOptions("")
	spec.WorkingDirectory, spec.Command = "/a$(HOME)", []string{"echo", "$(SANDGATE_INCARNATION)", "$$x"}
	got := strings.Join(podOf(t, spec).Spec.Containers[0].Command, " ")
	if !strings.Contains(got, "--workdir /a$$(HOME) ") || !strings.HasSuffix(got, "-- echo $$(SANDGATE_INCARNATION) $$$$x") {
		t.Errorf("%s", got)
	}
}

func TestEnvironmentIsNotInThePod(t *testing.T) {
	spec := withOptions("")
	spec.Env = map[string]string{"B": "secret-b", "A": "secret-a", "HOME": "/elsewhere"}
	pod := podOf(t, spec)
	data, err := json.Marshal(pod)
	if err != nil || strings.Contains(string(data), "secret-") || strings.Contains(string(data), "/elsewhere") {
		t.Errorf("%s, %v", data, err)
	}
	count := map[string]int{}
	for _, e := range pod.Spec.Containers[0].Env {
		count[e.Name]++
	}
	if count["A"] != 1 || count["B"] != 1 || count["HOME"] != 1 {
		t.Errorf("variables %v", count)
	}
}

// TestPoolKeyIgnoresWhatAClaimCanGive: what a claim can still give does not matter, all else does.
func TestPoolKeyIgnoresWhatAClaimCanGive(t *testing.T) {
	base, err := planOf(t, withOptions(""))
	if err != nil {
		t.Fatal(err)
	}
	key := func(change func(*providers.Spec)) string {
		spec := withOptions("")
		change(&spec)
		pl, err := planOf(t, spec)
		if err != nil {
			t.Fatal(err)
		}
		return pl.poolKey()
	}
	for name, change := range map[string]func(*providers.Spec){
		"id": func(s *providers.Spec) { s.ID, s.Tenant, s.Hash = "a", "b", "c" }, "labels": func(s *providers.Spec) { s.Labels = map[string]string{"a": "b"} },
		"ttl": func(s *providers.Spec) { s.TTL, s.IdleTTL = 1, 2 }, "access": func(s *providers.Spec) { s.Access = []byte{1} },
	} {
		if key(change) != base.poolKey() {
			t.Errorf("%s makes another key", name)
		}
	}
	seen := map[string]string{base.poolKey(): "nothing"}
	for name, change := range map[string]func(*providers.Spec){
		"image": func(s *providers.Spec) { s.Image = "y" }, "memory": func(s *providers.Spec) { s.Resources.MemoryBytes = 1 << 28 },
		"env": func(s *providers.Spec) { s.Env = map[string]string{"A": "b"} }, "value": func(s *providers.Spec) { s.Env = map[string]string{"A": "c"} },
		"network": func(s *providers.Spec) { s.Network = providers.NetworkFull }, "command": func(s *providers.Spec) { s.Command = []string{"x"} },
		"options": func(s *providers.Spec) { s.Options = json.RawMessage(`{"run_as_user": 9}`) }, "directory": func(s *providers.Spec) { s.WorkingDirectory = "/tmp" },
		"template": func(s *providers.Spec) { s.Template = "y" },
	} {
		k := key(change)
		if before, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", name, before)
		}
		seen[k] = name
	}
}
