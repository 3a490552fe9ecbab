package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
)

func TestRawPodOptions(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
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
		r := newRawHarness(t)
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
		if _, _, err := r.Create(limit(t), "s1-29", other); !errors.Is(err, providers.ErrForbidden) {
			t.Errorf("another tenant: %v", err)
		}
	})
}
