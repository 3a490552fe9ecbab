package kubernetes

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sandgate/sandgate/providers"
)

func TestRawOptions(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	t.Run("S3-5 S5-7 image, pull policy and secrets, working directory, command and environment", func(t *testing.T) {
		spec := rawSpec("s5-7", `{"image_pull_policy": "Never", "image_pull_secrets": ["some"]}`)
		spec.Image, spec.WorkingDirectory = image(), "/workspace/deep/er"
		spec.Command = []string{"sh", "-c", `echo "$GREETING $HOME" >/tmp/main; exec sleep 1000`}
		spec.Env = map[string]string{"GREETING": `a $(secret) "value"`}
		r.made(t, "s5-7", spec)
		if got := r.shell(t, "s5-7", "pwd; echo $GREETING"); got != "/workspace/deep/er\na $(secret) \"value\"\n" {
			t.Errorf("commands see %q", got)
		}
		if got := r.shell(t, "s5-7", "cat /tmp/main"); got != "a $(secret) \"value\" /home/sandbox\n" {
			t.Errorf("the sandbox's own command saw %q", got)
		}
		pod := r.pod(t, r.config.Namespace, "s5-7")
		main := pod.Spec.Containers[0]
		if main.ImagePullPolicy != core.PullNever || len(pod.Spec.ImagePullSecrets) != 1 || pod.Spec.ImagePullSecrets[0].Name != "some" {
			t.Errorf("pull policy %s, secrets %v", main.ImagePullPolicy, pod.Spec.ImagePullSecrets)
		}
		if data, err := json.Marshal(pod); err != nil || strings.Contains(string(data), "secret)") {
			t.Errorf("the pod shows the environment's values, %v", err)
		}
		if err := r.Delete(limit(t), "s5-7", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		r.nothingLeft(t, "s5-7")
	})
	t.Run("S3-6 S5-8 requests and limits", func(t *testing.T) {
		spec := rawSpec("s5-8", `{"cpu_request": "150m", "memory_request": "64Mi"}`)
		spec.Resources = providers.Resources{MemoryBytes: 512 << 20, CPUMillis: 700, DiskBytes: 1 << 30}
		r.made(t, "s5-8", spec)
		res := r.pod(t, r.config.Namespace, "s5-8").Spec.Containers[0].Resources
		if res.Limits.Memory().Value() != 512<<20 || res.Limits.Cpu().MilliValue() != 700 || res.Limits.StorageEphemeral().Value() < 1<<30 {
			t.Errorf("limits %v", res.Limits)
		}
		if res.Requests.Memory().Value() != 64<<20 || res.Requests.Cpu().MilliValue() != 150 || res.Requests.StorageEphemeral().Value() != 0 {
			t.Errorf("requests %v", res.Requests)
		}
		if got := r.shell(t, "s5-8", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"); got != "536870912\n" {
			t.Errorf("the kernel's limit is %q", got)
		}
	})
	t.Run("S3-7 S5-9 deny-all network policy", func(t *testing.T) {
		r.made(t, "s5-9", rawSpec("s5-9", ""))
		full := rawSpec("s5-9-full", "")
		full.Network = providers.NetworkFull
		if info := r.made(t, "s5-9-full", full); slices.Contains(info.NotEnforced, "network") {
			t.Errorf("a full network is not to be enforced: %v", info.NotEnforced)
		}
		policies, err := r.client.NetworkingV1().NetworkPolicies(r.config.Namespace).List(limit(t), meta.ListOptions{})
		if err != nil || len(policies.Items) != 1 {
			t.Fatalf("policies: %+v, %v", policies, err)
		}
		policy := policies.Items[0]
		if len(policy.Spec.Ingress)+len(policy.Spec.Egress) > 0 || len(policy.Spec.PolicyTypes) != 2 {
			t.Errorf("it allows something: %+v", policy.Spec)
		}
		selector, err := meta.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{"s5-9": true, "s5-9-full": false} {
			if got := selector.Matches(labels.Set(r.pod(t, r.config.Namespace, name).Labels)); got != want {
				t.Errorf("the policy holds for %s: %v", name, got)
			}
		}
	})
	t.Run("S3-8 S5-10 user, group and seccomp profile", func(t *testing.T) {
		r.made(t, "s5-10", rawSpec("s5-10", `{"run_as_user": 1234, "run_as_group": 4321, "fs_group": 99, "supplemental_groups": [77]}`))
		if got := r.shell(t, "s5-10", "id -u; id -g; id -G; grep Seccomp: /proc/self/status; touch /workspace/x && stat -c %u /workspace/x"); got != "1234\n4321\n4321 77 99\nSeccomp:\t2\n1234\n" {
			t.Errorf("it is %q", got)
		}
		pod := r.pod(t, r.config.Namespace, "s5-10")
		if p := pod.Spec.SecurityContext.SeccompProfile; p.Type != core.SeccompProfileTypeRuntimeDefault {
			t.Errorf("profile %v", p)
		}
		// A profile that the node has not got is an early, clear failure.
		_, _, err := r.Create(limit(t), "s5-10-local", rawSpec("s5-10-local", `{"seccomp_profile": "Localhost/no/such.json"}`))
		if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "no/such.json") {
			t.Errorf("a missing profile: %v", err)
		}
		r.nothingLeft(t, "s5-10-local")
	})
}
