package kubernetes

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
	"github.com/sandgate/sandgate/providers/providertest"
)

// asOpen is a provider in a namespace of the test's own, with the SandboxTemplate
// "plain".
func asOpen(t *testing.T, more map[string]any) (*asHarness, *agentsandbox.Provider) {
	t.Helper()
	r := newASHarness(t)
	r.template("plain", restricted(image()), more)
	p := r.open(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, p
}

// named completes a spec.
func named(spec providers.Spec, id string) providers.Spec {
	spec.Tenant, spec.ID, spec.Hash = "test", id, "hash of "+id
	return spec
}

func asCreate(t *testing.T, p *agentsandbox.Provider, name string, spec providers.Spec) providers.Info {
	t.Helper()
	info, err := providertest.Create(limit(t), p, name, named(spec, name))
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return info
}

// assertNothingLeft looks for what a failed creation may leave.
func (r *asHarness) assertNothingLeft(t *testing.T, name string) {
	t.Helper()
	if u, err := r.object(sandboxClaims, name); !kerrors.IsNotFound(err) {
		t.Errorf("left behind: %v, %v", u, err)
	}
	for _, pod := range r.pods() {
		if strings.HasPrefix(pod.Name, name) {
			t.Errorf("left behind: pod %s", pod.Name)
		}
	}
}

func TestAgentSandboxClaims(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	r.pool("theirs", "plain", 1)

	t.Run("S3-17 S4-11 S5-21 C9 a warm pool by name is really adopted from", func(t *testing.T) {
		info := asCreate(t, p, "warm", asSpec(`{"pool": "theirs"}`))
		if !info.FromPool {
			t.Errorf("%+v", info)
		}
		c, err := r.object(sandboxClaims, "warm")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.GetAnnotations()["agents.x-k8s.io/sandbox-name"]; !strings.HasPrefix(got, "theirs-") {
			t.Errorf("the claim was given %q", got)
		}
		if got, err := p.Get(limit(t), "warm"); err != nil || !got.FromPool {
			t.Errorf("%+v, %v", got, err)
		}
		if out := providertest.Shell(t, p, "warm", "id -u; pwd"); out != "1000\n/workspace\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("S1-6 S5-3 a template by name starts from its SandboxTemplate", func(t *testing.T) {
		info := asCreate(t, p, "cold", asSpec(`{"sandbox_template": "plain"}`))
		if info.FromPool || info.Incarnation == "" {
			t.Errorf("%+v", info)
		}
		if !info.Unprivileged || !info.ReadOnlySystem {
			t.Errorf("a restricted pod is told as %+v", info)
		}
	})
	t.Run("S1-28 labels on the claim, pod labels and annotations on the pod", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "plain", "pod_labels": {"sandbox.users.io/team": "blue"}, "pod_annotations": {"example.com/why": "test"}}`)
		spec.Labels = map[string]string{"thread": "7", "not a label's name": "x"}
		asCreate(t, p, "labels", spec)
		c, err := r.object(sandboxClaims, "labels")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.GetLabels()["label.sandgate.dev/thread"]; got != "7" {
			t.Errorf("labels of the claim: %v", c.GetLabels())
		}
		sandbox, _, _ := unstructured.NestedString(c.Object, "status", "sandbox", "name")
		pods := r.pods()
		i := slices.IndexFunc(pods, func(pod core.Pod) bool { return pod.Name == sandbox })
		if i < 0 {
			t.Fatalf("the claim has no pod of the name %q", sandbox)
		}
		if pod := pods[i]; pod.Labels["sandbox.users.io/team"] != "blue" || pod.Annotations["example.com/why"] != "test" {
			t.Errorf("metadata of the pod: %v, %v", pod.Labels, pod.Annotations)
		}
	})
	t.Run("S1-28 pod labels that are refused fail fast", func(t *testing.T) {
		_, err := providertest.Create(limit(t), p, "refused", named(asSpec(`{"sandbox_template": "plain", "pod_labels": {"example.com/team": "blue"}}`), "refused"))
		if !errors.Is(err, providers.ErrForbidden) || !strings.Contains(err.Error(), "not in the allowlist") {
			t.Errorf("%v", err)
		}
		r.assertNothingLeft(t, "refused")
	})
	t.Run("S1-30 env that is refused fails fast", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "plain"}`)
		spec.Env = map[string]string{"TOKEN": "a secret"}
		_, err := providertest.Create(limit(t), p, "env", named(spec, "env"))
		if !errors.Is(err, providers.ErrForbidden) || !strings.Contains(err.Error(), "EnvVarsInjectionRejected") {
			t.Errorf("%v", err)
		}
		if err != nil && strings.Contains(err.Error(), "a secret") {
			t.Errorf("the error tells the secret: %v", err)
		}
		r.assertNothingLeft(t, "env")
	})
	t.Run("S3-25 a template that is not there", func(t *testing.T) {
		_, err := providertest.Create(limit(t), p, "none", named(asSpec(`{"sandbox_template": "nowhere"}`), "none"))
		if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "no SandboxTemplate nowhere") {
			t.Errorf("%v", err)
		}
		_, err = providertest.Create(limit(t), p, "none", named(asSpec(`{"pool": "nowhere"}`), "none"))
		if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "no SandboxWarmPool nowhere") {
			t.Errorf("%v", err)
		}
		r.assertNothingLeft(t, "none")
	})
	t.Run("an unavailable image fails fast and the error names it", func(t *testing.T) {
		r.template("no-image", restricted("docker.io/sandgate/nowhere:test", func(s *core.PodSpec) {
			s.Containers[0].ImagePullPolicy = core.PullNever
		}), nil)
		_, err := providertest.Create(limit(t), p, "image", named(asSpec(`{"sandbox_template": "no-image"}`), "image"))
		if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "docker.io/sandgate/nowhere:test") {
			t.Errorf("%v", err)
		}
		r.assertNothingLeft(t, "image")
	})
	t.Run("what only the SandboxTemplate can say is refused", func(t *testing.T) {
		for what, change := range map[string]func(*providers.Spec){
			"image":   func(s *providers.Spec) { s.Image = "x" },
			"command": func(s *providers.Spec) { s.Command = []string{"x"} },
		} {
			spec := asSpec(`{"sandbox_template": "plain"}`)
			change(&spec)
			if _, err := providertest.Create(limit(t), p, "unsupported", named(spec, "unsupported")); !errors.Is(err, providers.ErrUnsupported) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// Who joins a creation gets a sandbox also where the one who began it gives up
// and takes away what it made, at whatever moment.
func TestAgentSandboxJoinsOneWhoGivesUp(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	other := r.open(t)
	t.Cleanup(func() { _ = other.Close() })
	why := errors.New("the caller has had enough")
	for moment := 200 * time.Millisecond; moment <= 3*time.Second; moment += 400 * time.Millisecond {
		t.Run("C20 after "+moment.String(), func(t *testing.T) {
			t.Parallel()
			name := "given-up-" + strconv.Itoa(int(moment.Milliseconds()))
			spec := named(asSpec(`{"sandbox_template": "plain"}`), name)
			ctx, cancel := context.WithTimeoutCause(limit(t), moment, why)
			defer cancel()
			began := make(chan error, 1)
			go func() {
				_, err := providertest.Create(ctx, p, name, spec)
				began <- err
			}()
			time.Sleep(moment / 2) // some time between the two, not a wait for something
			_, err := providertest.Create(limit(t), other, name, spec)
			if err != nil {
				t.Errorf("who joined: %v", err)
			}
			if err := <-began; err != nil && !errors.Is(err, why) {
				t.Errorf("who began: %v", err)
			}
		})
	}
}

func TestAgentSandboxEnv(t *testing.T) {
	t.Parallel()
	_, p := asOpen(t, map[string]any{"envVarsInjectionPolicy": "Allowed"})
	t.Run("S1-30 env per sandbox where the template allows it", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "plain"}`)
		spec.Env = map[string]string{"GREETING": "hello"}
		asCreate(t, p, "env", spec)
		if out := providertest.Shell(t, p, "env", "echo $GREETING"); out != "hello\n" {
			t.Errorf("%q", out)
		}
	})
}

// Containers without a place or a program for the agent.
func TestAgentSandboxAgentCannotStart(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	spec := func(options string) providers.Spec { return asSpec(options) }
	t.Run("no directory", func(t *testing.T) {
		r.template("read-only", restricted(image(), func(s *core.PodSpec) {
			s.Volumes, s.Containers[0].VolumeMounts = nil, nil
		}), nil)
		_, err := providertest.Create(limit(t), p, "read-only", named(spec(`{"sandbox_template": "read-only"}`), "read-only"))
		if !errors.Is(err, providers.ErrAgentCannotStart) {
			t.Fatal(err)
		}
		for _, part := range []string{"/tmp: not writable", "mountPath: /sandgate", "emptyDir: {}"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
		r.assertNothingLeft(t, "read-only")
	})
	t.Run("that patch cures it", func(t *testing.T) {
		r.template("patched", restricted(image(), func(s *core.PodSpec) {
			s.Volumes = []core.Volume{{Name: "sandgate", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
			s.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "sandgate", MountPath: "/sandgate"}}
		}), nil)
		asCreate(t, p, "patched", spec(`{"sandbox_template": "patched"}`))
		if out := providertest.Shell(t, p, "patched", "echo works"); out != "works\n" {
			t.Errorf("%q", out)
		}
	})
	shellless := func(s *core.PodSpec) {
		s.Volumes, s.Containers[0].VolumeMounts, s.Containers[0].WorkingDir, s.Containers[0].Command = nil, nil, "", nil
	}
	t.Run("C24 no shell in the image", func(t *testing.T) {
		r.template("bare", restricted("docker.io/sandgate/pause:test", shellless), nil)
		_, err := providertest.Create(limit(t), p, "bare", named(spec(`{"sandbox_template": "bare"}`), "bare"))
		if !errors.Is(err, providers.ErrAgentCannotStart) {
			t.Fatal(err)
		}
		for _, part := range []string{"none of sh, python3 and tar", "initContainers:", "command: [/sandgate-agent, install, /sandgate]"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
		r.assertNothingLeft(t, "bare")
	})
	t.Run("an init container cures that", func(t *testing.T) {
		r.template("init", restricted("docker.io/sandgate/pause:test", shellless, func(s *core.PodSpec) {
			mounts := []core.VolumeMount{{Name: "sandgate", MountPath: "/sandgate"}}
			s.Volumes = []core.Volume{{Name: "sandgate", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
			s.Containers[0].VolumeMounts = mounts
			s.InitContainers = []core.Container{{
				Name: "sandgate-agent", Image: agentImage(), ImagePullPolicy: core.PullIfNotPresent,
				Command: []string{"/sandgate-agent", "install", "/sandgate"}, VolumeMounts: mounts,
			}}
		}), nil)
		asCreate(t, p, "init", spec(`{"sandbox_template": "init"}`))
		conn, err := p.Dial(limit(t), "init")
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// endSoon has a pod end that waits for a file, when the end of this command has
// been told: it would go with the pod.
const endSoon = "(sleep 1; touch /tmp/end) >/dev/null 2>&1 &"

// The cluster ends what no server is left for.
func TestAgentSandboxEndsByItself(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	gone := func(t *testing.T, name string) {
		t.Helper()
		for deadline := time.Now().Add(waitTimeout); ; time.Sleep(100 * time.Millisecond) {
			_, err := r.object(sandboxClaims, name)
			left := 0
			for _, pod := range r.pods() {
				if pod.Name == name {
					left++
				}
			}
			if kerrors.IsNotFound(err) && left == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("it is still there: %v, %d pods", err, left)
			}
		}
	}
	t.Run("C21 a ttl as the claim's shutdownTime", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "plain"}`)
		spec.TTL = time.Hour
		info := asCreate(t, p, "ttl", spec)
		ttl := time.Since(info.CreateTime) + 2*time.Second
		if _, err := p.Update(limit(t), "ttl", providers.Change{TTL: &ttl}); err != nil {
			t.Fatal(err)
		}
		gone(t, "ttl")
		if time.Now().Before(info.CreateTime.Add(ttl)) {
			t.Error("it went early")
		}
		if _, err := p.Get(limit(t), "ttl"); !errors.Is(err, providers.ErrNotFound) {
			t.Errorf("%v", err)
		}
	})
	t.Run("S1-31 after its pod ended", func(t *testing.T) {
		r.template("ends", restricted(image(), func(s *core.PodSpec) {
			s.RestartPolicy = core.RestartPolicyNever
			s.Containers[0].Command = []string{"sh", "-c", "while ! [ -e /tmp/end ]; do sleep 0.1; done"}
		}), nil)
		asCreate(t, p, "ends", asSpec(`{"sandbox_template": "ends", "ttl_seconds_after_finished": 1}`))
		providertest.Shell(t, p, "ends", endSoon)
		gone(t, "ends")
	})
	t.Run("C5 a pod that the kernel ended for its memory", func(t *testing.T) {
		r.template("hog", restricted(image(), func(s *core.PodSpec) {
			s.RestartPolicy = core.RestartPolicyNever
			s.Containers[0].Command = []string{"sh", "-c", "while ! [ -e /tmp/end ]; do sleep 0.1; done; exec tail /dev/zero"}
			s.Containers[0].Resources.Limits = core.ResourceList{core.ResourceMemory: resource.MustParse("64Mi")}
		}), nil)
		asCreate(t, p, "hog", asSpec(`{"sandbox_template": "hog"}`))
		providertest.Shell(t, p, "hog", endSoon)
		for deadline := time.Now().Add(waitTimeout); ; time.Sleep(100 * time.Millisecond) {
			info, err := p.Get(limit(t), "hog")
			if err == nil && info.State == providers.StateFailed {
				if info.Failure != providers.FailureOutOfMemory || !strings.Contains(info.Message, "OOMKilled") {
					t.Errorf("%+v", info)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v, %v", info, err)
			}
		}
	})
}

// deletePod is what an eviction or an operator does.
func (r *asHarness) deletePod(t *testing.T, name string) {
	t.Helper()
	client, _ := clientset(t)
	none := int64(0)
	if err := client.CoreV1().Pods(r.namespace).Delete(limit(t), name, meta.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
}
