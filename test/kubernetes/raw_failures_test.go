package kubernetes

import (
	"errors"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
)

// TestRawEarlyFailures: what cannot start is told at once and in the cluster's
// own words, and leaves nothing behind.
func TestRawEarlyFailures(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
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
		{"missing secret in the environment", `{"secrets": ["none"], "pod_overrides": {"containers": [{"name": "sandbox", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]}]}}`, nil, providers.ErrStartFailed, `secret "none" not found`},
		{"missing volume", `{"start_timeout_seconds": 10, "volumes": [{"name": "v", "configMap": {"name": "none"}}], "volume_mounts": [{"name": "v", "mountPath": "/v"}]}`, nil, providers.ErrStartTimeout, `configmap "none" not found`},
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
			_, _, err := p.Create(limit(t), name, spec)
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
	t.Parallel()
	r := newRawHarness(t)
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
	if _, _, err := r.Create(limit(t), "gone", rawSpec("gone", "")); !errors.Is(err, providers.ErrNotActive) {
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
