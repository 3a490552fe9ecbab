package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/providers/providertest"
)

// rawRig is a raw provider in a namespace of the test's own, with small images.
type rawRig struct {
	*raw.Provider
	config raw.Config
	client *kubernetes.Clientset
}

func newRawRig(t *testing.T) rawRig {
	t.Helper()
	config := rawConfig(t)
	config.AgentImage = agentImage()
	client, _ := clientset(t)
	r := rawRig{Provider: openRaw(t, config), config: config, client: client}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func rawSpec(id string, options string) providers.Spec {
	s := providers.Spec{
		Tenant: "t", ID: id, Hash: "hash of " + id, Template: "default", Network: providers.NetworkNone, Resources: raw.DefaultResources(),
	}
	if options != "" {
		s.TemplateOptions = json.RawMessage(options)
	}
	return s
}

// made creates a sandbox that goes with the test.
func (r rawRig) made(t *testing.T, name string, spec providers.Spec) providers.Info {
	t.Helper()
	info, err := r.Create(limit(t), name, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.Delete(ctx, name, providers.Condition{}); err != nil && !errors.Is(err, providers.ErrNotFound) {
			t.Errorf("delete %s: %v", name, err)
		}
	})
	return info
}

func (r rawRig) pod(t *testing.T, namespace, name string) *core.Pod {
	t.Helper()
	list, err := r.client.CoreV1().Pods(namespace).List(limit(t), meta.ListOptions{LabelSelector: "sandgate.dev/name=" + name})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("pods of %s: %d, %v", name, len(list.Items), err)
	}
	return &list.Items[0]
}

func (r rawRig) shell(t *testing.T, name, script string) string {
	t.Helper()
	return providertest.Shell(t, r.Provider, name, script)
}

// nothingLeft fails unless the namespace has no trace of a sandbox.
func (r rawRig) nothingLeft(t *testing.T, name string) {
	t.Helper()
	ctx, opts := limit(t), meta.ListOptions{LabelSelector: "sandgate.dev/name=" + name}
	if _, err := r.Get(ctx, name); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("get of what should be gone: %v", err)
	}
	if _, err := r.client.CoreV1().ConfigMaps(r.config.Namespace).Get(ctx, name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
		t.Errorf("the record is left: %v", err)
	}
	if list, err := r.client.CoreV1().Pods(meta.NamespaceAll).List(ctx, opts); err != nil || len(list.Items) > 0 {
		t.Errorf("pods are left: %d, %v", len(list.Items), err)
	}
	if list, err := r.client.CoreV1().Secrets(r.config.Namespace).List(ctx, meta.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("secrets are left: %d, %v", len(list.Items), err)
	}
}

func TestRawOptions(t *testing.T) {
	r := newRawRig(t)
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
		_, err := r.Create(limit(t), "s5-10-local", rawSpec("s5-10-local", `{"seccomp_profile": "Localhost/no/such.json"}`))
		if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "no/such.json") {
			t.Errorf("a missing profile: %v", err)
		}
		r.nothingLeft(t, "s5-10-local")
	})
}

func TestRawNamespacePerSandbox(t *testing.T) {
	r := newRawRig(t)
	options := `{"namespace_per_sandbox": true, "namespace_quota": {"pods": "1", "limits.memory": "2Gi"},
		"namespace_limits": [{"type": "Container", "default": {"cpu": "1"}}]}`
	name := "s5-11-" + r.config.Namespace
	t.Run("S3-9 S5-11 a namespace with quota, limits and policy of its own", func(t *testing.T) {
		spec := rawSpec("s5-11", options)
		spec.Env = map[string]string{"A": "b"}
		info := r.made(t, name, spec)
		if got := r.shell(t, name, "echo $A"); got != "b\n" {
			t.Errorf("it says %q", got)
		}
		quota, err := r.client.CoreV1().ResourceQuotas(name).Get(limit(t), "sandgate", meta.GetOptions{})
		if err != nil || quota.Spec.Hard.Pods().Value() != 1 {
			t.Errorf("quota: %v, %v", quota, err)
		}
		if ranges, err := r.client.CoreV1().LimitRanges(name).List(limit(t), meta.ListOptions{}); err != nil || len(ranges.Items) != 1 {
			t.Errorf("limit ranges: %v, %v", ranges, err)
		}
		if policies, err := r.client.NetworkingV1().NetworkPolicies(name).List(limit(t), meta.ListOptions{}); err != nil || len(policies.Items) != 1 {
			t.Errorf("policies: %v, %v", policies, err)
		}
		page, err := r.List(limit(t), providers.Query{Tenant: "t", Limit: 10})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Incarnation != info.Incarnation || page.Sandboxes[0].State != providers.StateActive {
			t.Errorf("list: %+v, %v", page, err)
		}
		if err := r.Delete(limit(t), name, providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.client.CoreV1().Namespaces().Get(limit(t), name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
			t.Errorf("the namespace is left: %v", err)
		}
		r.nothingLeft(t, name)
	})
	t.Run("S5-11 a quota that is too small fails early and leaves nothing", func(t *testing.T) {
		spec := rawSpec("s5-11", options)
		spec.Resources.MemoryBytes = 3 << 30
		_, err := r.Create(limit(t), name, spec)
		if !errors.Is(err, providers.ErrExhausted) {
			t.Errorf("create: %v", err)
		}
		if _, err := r.client.CoreV1().Namespaces().Get(limit(t), name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
			t.Errorf("the namespace is left: %v", err)
		}
		r.nothingLeft(t, name)
	})
	t.Run("a namespace of somebody else's is left alone", func(t *testing.T) {
		foreign := namespace(t, r.client)
		if _, err := r.Create(limit(t), foreign, rawSpec("x", options)); err == nil {
			t.Error("it was taken")
		}
		if ns, err := r.client.CoreV1().Namespaces().Get(limit(t), foreign, meta.GetOptions{}); err != nil || ns.DeletionTimestamp != nil {
			t.Errorf("it is %v, %v", ns, err)
		}
	})
}

func TestRawPodOptions(t *testing.T) {
	r := newRawRig(t)
	t.Run("S5-12 service account, node selector, tolerations, volumes, mounts, init containers", func(t *testing.T) {
		_, err := r.client.CoreV1().ServiceAccounts(r.config.Namespace).Create(limit(t), &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: "mine"}}, meta.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.made(t, "s5-12", rawSpec("s5-12", fmt.Sprintf(`{
			"service_account": "mine",
			"node_selector": {"kubernetes.io/os": "linux"},
			"tolerations": [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}],
			"volumes": [{"name": "data", "emptyDir": {}}],
			"volume_mounts": [{"name": "data", "mountPath": "/data"}],
			"init_containers": [{"name": "fill", "image": %q, "command": ["sh", "-c", "echo filled >/data/f"],
				"volumeMounts": [{"name": "data", "mountPath": "/data"}]}]
		}`, image())))
		if got := r.shell(t, "s5-12", "cat /data/f; ls /var/run/secrets/kubernetes.io/serviceaccount 2>&1 | head -c 3"); got != "filled\nls:" {
			t.Errorf("it says %q", got)
		}
		pod := r.pod(t, r.config.Namespace, "s5-12")
		if pod.Spec.ServiceAccountName != "mine" || pod.Spec.NodeSelector["kubernetes.io/os"] != "linux" || pod.Spec.Tolerations[0].Key != "sandboxes" {
			t.Errorf("pod %+v", pod.Spec)
		}
	})
	t.Run("S5-13 S1-28 overrides, labels, annotations and a setup script", func(t *testing.T) {
		spec := rawSpec("s5-13", `{
			"pod_overrides": {"terminationGracePeriodSeconds": 3, "containers": [{"name": "sandbox", "env": [{"name": "FROM_OVERRIDE", "value": "yes"}]}]},
			"labels": {"team": "blue"}, "annotations": {"example.com/note": "hello there"},
			"setup_script": "echo $FROM_OVERRIDE >made-by-setup; pwd >>made-by-setup"
		}`)
		spec.Labels = map[string]string{"thread": "7"}
		r.made(t, "s5-13", spec)
		if got := r.shell(t, "s5-13", "cat /workspace/made-by-setup"); got != "yes\n/workspace\n" {
			t.Errorf("it says %q", got)
		}
		pod := r.pod(t, r.config.Namespace, "s5-13")
		if *pod.Spec.TerminationGracePeriodSeconds != 3 || pod.Labels["team"] != "blue" || pod.Annotations["example.com/note"] != "hello there" {
			t.Errorf("pod %+v %+v", pod.ObjectMeta, pod.Spec.TerminationGracePeriodSeconds)
		}
		if pod.Labels["label.sandgate.dev/thread"] != "7" {
			t.Errorf("the caller's labels: %v", pod.Labels)
		}
	})
	t.Run("S5-14 the restricted pod security standard takes them", func(t *testing.T) {
		r := newRawRig(t)
		data := []byte(`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`)
		if _, err := r.client.CoreV1().Namespaces().Patch(limit(t), r.config.Namespace, "application/merge-patch+json", data, meta.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		r.made(t, "s5-14", rawSpec("s5-14", ""))
		pod := r.pod(t, r.config.Namespace, "s5-14")
		main := pod.Spec.Containers[0]
		s := main.SecurityContext
		if *pod.Spec.AutomountServiceAccountToken || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
			t.Errorf("pod %+v", s)
		}
	})
	t.Run("S1-29 a volume that outlives the sandbox", func(t *testing.T) {
		spec := rawSpec("s1-29", `{"claim_templates": [
			{"name": "work", "mount_path": "/data", "storage": "10Mi", "retain": true},
			{"name": "scratch", "mount_path": "/scratch", "storage": "10Mi"}]}`)
		r.made(t, "s1-29", spec)
		r.open(t, "s1-29-work")
		if got := r.shell(t, "s1-29", "echo kept >/data/f && cat /data/f; ls -d /scratch"); got != "kept\n/scratch\n" {
			t.Errorf("the volumes are %q", got)
		}
		if err := r.Delete(limit(t), "s1-29", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		r.made(t, "s1-29", spec)
		if got := r.shell(t, "s1-29", "cat /data/f"); got != "kept\n" {
			t.Errorf("afterwards there is %q", got)
		}
		// Another tenant's sandbox of the same name would not get it; a claim of
		// somebody else's is refused.
		claims := r.client.CoreV1().PersistentVolumeClaims(r.config.Namespace)
		have, err := claims.List(limit(t), meta.ListOptions{LabelSelector: "sandgate.dev/name=s1-29"})
		if err != nil || len(have.Items) != 1 {
			t.Errorf("claims: %v, %v", have, err)
		}
		other := rawSpec("s1-29", string(spec.TemplateOptions))
		other.Tenant, other.Hash = "u", "another"
		if err := r.Delete(limit(t), "s1-29", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Create(limit(t), "s1-29", other); !errors.Is(err, providers.ErrForbidden) {
			t.Errorf("another tenant: %v", err)
		}
	})
}

// open lets everybody write to a volume. One of a real storage class belongs to
// the sandbox's group; a directory of the node, as test clusters have it, does
// not.
func (r rawRig) open(t *testing.T, claim string) {
	t.Helper()
	pods := r.client.CoreV1().Pods(r.config.Namespace)
	made, err := pods.Create(limit(t), &core.Pod{
		ObjectMeta: meta.ObjectMeta{GenerateName: "open-"},
		Spec: core.PodSpec{
			DNSPolicy: core.DNSDefault, RestartPolicy: core.RestartPolicyNever,
			Volumes: []core.Volume{{Name: "v", VolumeSource: core.VolumeSource{
				PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
			Containers: []core.Container{{
				Name: "main", Image: image(), Command: []string{"chmod", "0777", "/v"},
				SecurityContext: &core.SecurityContext{RunAsUser: new(int64)},
				VolumeMounts:    []core.VolumeMount{{Name: "v", MountPath: "/v"}},
			}},
		},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, watcher(r.client, "pods", made.Namespace, made.Name), func(pod *core.Pod) bool { return pod.Status.Phase == core.PodSucceeded })
}

// TestRawEarlyFailures: what cannot start is told at once and in the cluster's
// own words, and leaves nothing behind.
func TestRawEarlyFailures(t *testing.T) {
	r := newRawRig(t)
	for _, c := range []struct {
		name, options string
		change        func(*providers.Spec)
		want          error
		text          string
	}{
		{"image never pulled", `{"image_pull_policy": "Never"}`, func(s *providers.Spec) { s.Image = "docker.io/sandgate/none:no" }, providers.ErrStartFailed, "ErrImageNeverPull"},
		{"image cannot be pulled", `{"image_pull_policy": "Always"}`, func(s *providers.Spec) { s.Image = "localhost:1/none:no" }, providers.ErrStartFailed, "ErrImagePull"},
		{"invalid image name", ``, func(s *providers.Spec) { s.Image = "UPPER CASE" }, providers.ErrStartFailed, "InvalidImageName"},
		{"unschedulable", `{"node_selector": {"no": "such"}, "schedule_timeout_seconds": 2}`, nil, providers.ErrExhausted, "didn't match Pod's node affinity/selector"},
		{"too much memory for any node", `{"memory_request": "900Gi", "schedule_timeout_seconds": 2}`, func(s *providers.Spec) { s.Resources.MemoryBytes = 900 << 30 }, providers.ErrExhausted, "Insufficient memory"},
		{"missing service account", `{"service_account": "none"}`, nil, providers.ErrForbidden, `"none" not found`},
		{"missing secret in the environment", `{"pod_overrides": {"containers": [{"name": "sandbox", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]}]}}`, nil, providers.ErrStartFailed, `secret "none" not found`},
		{"missing volume", `{"start_timeout_seconds": 4, "volumes": [{"name": "v", "configMap": {"name": "none"}}], "volume_mounts": [{"name": "v", "mountPath": "/v"}]}`, nil, providers.ErrStartTimeout, `configmap "none" not found`},
		{"missing runtime class", `{"runtime_class_name": "none"}`, nil, providers.ErrForbidden, `"none" not found`},
		{"setup script fails", `{"setup_script": "echo because of this >&2; exit 3"}`, nil, providers.ErrStartFailed, "because of this"},
		{"init container fails", `{"init_containers": [{"name": "bad", "image": "` + image() + `", "command": ["sh", "-c", "echo for that reason >&2; exit 4"], "terminationMessagePolicy": "FallbackToLogsOnError"}]}`, nil, providers.ErrStartFailed, "for that reason"},
		{"command does not exist", ``, func(s *providers.Spec) { s.Command = []string{"/no/such"} }, providers.ErrStartFailed, `no program "/no/such"`},
		{"agent image without an agent", ``, nil, providers.ErrStartFailed, "sandgate-agent"},
		{"overrides that make no pod", `{"pod_overrides": {"containers": [{"name": "sandbox", "ports": [{"containerPort": 99999999}]}]}}`, nil, providers.ErrInvalid, "containerPort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := "early-" + strings.ReplaceAll(c.name, " ", "-")
			spec := rawSpec(c.name, c.options)
			if c.change != nil {
				c.change(&spec)
			}
			p := r
			if strings.HasPrefix(c.name, "agent image") {
				config := r.config
				config.AgentImage = image()
				p.Provider = openRaw(t, config)
				defer func() { _ = p.Close() }()
			}
			began := time.Now()
			_, err := p.Create(limit(t), name, spec)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("after %v: %v", time.Since(began).Round(time.Millisecond), err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			r.nothingLeft(t, name)
		})
	}
}

// TestRawIncarnation: a pod that goes is a sandbox that failed, never one that
// is made anew in silence.
func TestRawIncarnation(t *testing.T) {
	r := newRawRig(t)
	first := r.made(t, "gone", rawSpec("gone", ""))
	pod := r.pod(t, r.config.Namespace, "gone")
	if string(pod.UID) != first.Incarnation {
		t.Errorf("incarnation %s of pod %s", first.Incarnation, pod.UID)
	}
	if err := r.client.CoreV1().Pods(pod.Namespace).Delete(limit(t), pod.Name, meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for ctx := limit(t); ; {
		info, err := r.Get(ctx, "gone")
		if err != nil {
			t.Fatal(err)
		}
		if info.State != providers.StateFailed {
			t.Fatalf("it is %+v", info)
		}
		if strings.Contains(info.Message, "is gone") {
			break
		}
	}
	if conn, err := r.Dial(limit(t), "gone"); !errors.Is(err, providers.ErrNotActive) {
		t.Errorf("dial: %v, %v", conn, err)
	}
	if _, err := r.Create(limit(t), "gone", rawSpec("gone", "")); !errors.Is(err, providers.ErrNotActive) {
		t.Errorf("create again: %v", err)
	}
	page, err := r.List(limit(t), providers.Query{Limit: 5, States: []providers.State{providers.StateFailed}})
	if err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("list: %+v, %v", page, err)
	}
	if err := r.Delete(limit(t), "gone", providers.Condition{Incarnation: first.Incarnation}); err != nil {
		t.Fatal(err)
	}
	if second := r.made(t, "gone", rawSpec("gone", "")); second.Incarnation == first.Incarnation {
		t.Errorf("the second is %+v", second)
	}
}

func replaceOnce(t *testing.T, text, from, to string) string {
	t.Helper()
	if strings.Count(text, from) != 1 {
		t.Fatalf("%q is not once in %q", from, text)
	}
	return strings.Replace(text, from, to, 1)
}
