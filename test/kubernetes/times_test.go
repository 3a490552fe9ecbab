package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

const (
	// seconds are what a sandbox that cannot start and a command that does not end
	// are given here.
	seconds = 3
	// explainedSeconds are time enough for a busy kubelet to say why one cannot
	// start.
	explainedSeconds = 10
)

// endless runs a command that ends by the server's time only, whatever it asks
// for.
func endless(t *testing.T, box *sandgate.Sandbox) {
	t.Helper()
	for _, asked := range []time.Duration{0, time.Hour} {
		began := time.Now()
		got, err := box.Execute(limit(t), sandgate.ExecuteRequest{Shell: "echo begun; exec sleep 1000", Timeout: asked})
		if err != nil {
			t.Fatal(err)
		}
		if got.Exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT || string(got.Stdout) != "begun\n" {
			t.Errorf("it ended %+v", got)
		}
		if took := time.Since(began); took < seconds*time.Second || took > 10*seconds*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

// slow checks what is said of a sandbox that was not ready in time.
func slow(t *testing.T, began time.Time, err error, what string) {
	t.Helper()
	if !errors.Is(err, sandgate.ErrSandboxStart) || !strings.Contains(err.Error(), what) {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if took := time.Since(began); took < seconds*time.Second || took > 10*seconds*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestRawTimes(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	options := fmt.Sprintf(`{"start_timeout_seconds": %d, "volumes": [{"name": "v", "configMap": {"name": "none"}}], "volume_mounts": [{"name": "v", "mountPath": "/v"}]}`, explainedSeconds)
	never := policy.DefaultTemplate()
	never.Name, never.ProviderOptions = "never", json.RawMessage(options)
	client := serve(t, server.Config{
		Provider: r.Provider, Templates: []policy.Template{policy.DefaultTemplate(), never},
		Limits: server.Limits{DefaultTimeout: seconds * time.Second, MaxTimeout: seconds * time.Second},
	})
	t.Run("S3-2 S5-5 time to start", func(t *testing.T) {
		began := time.Now()
		_, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "never", Template: "never"})
		slow(t, began, err, `configmap "none" not found`)
	})
	t.Run("S1-15 S3-2 S5-5 time for commands", func(t *testing.T) {
		box, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "box"})
		if err != nil {
			t.Fatal(err)
		}
		endless(t, box)
		if err := box.Delete(limit(t)); err != nil {
			t.Error(err)
		}
	})
	t.Run("S5-5 120 s to start and 1800 s for commands can be said", func(t *testing.T) {
		const start, command = 120, 1800 * time.Second
		options := json.RawMessage(fmt.Sprintf(`{"start_timeout_seconds": %d}`, start))
		template := policy.DefaultTemplate()
		template.ProviderOptions = options
		client := serve(t, server.Config{
			Provider: r.Provider, Templates: []policy.Template{template}, Limits: server.Limits{DefaultTimeout: command},
		})
		info, err := client.ServerInfo(limit(t))
		if err != nil || info.GetLimits().GetDefaultTimeout().AsDuration() != command {
			t.Errorf("%v, %v", info.GetLimits(), err)
		}
	})
}

func TestAgentSandboxTimes(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	r.template("never", restricted(image(), func(s *core.PodSpec) {
		s.Containers[0].ReadinessProbe = &core.Probe{ProbeHandler: core.ProbeHandler{Exec: &core.ExecAction{Command: []string{"false"}}}}
	}), nil)
	of := func(name, sandboxTemplate string) policy.Template {
		made := policy.DefaultTemplate()
		made.Name, made.Network = name, providers.NetworkFull
		made.ProviderOptions = json.RawMessage(fmt.Sprintf(`{"sandbox_template": %q}`, sandboxTemplate))
		return made
	}
	t.Run("S3-2 S5-5 time to start", func(t *testing.T) {
		client := serve(t, server.Config{
			Provider: p, Templates: []policy.Template{of("default", "never")},
			Limits: server.Limits{CreateTimeout: seconds * time.Second},
		})
		began := time.Now()
		_, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "never"})
		slow(t, began, err, "did not become ready within 3s")
		if pods := r.pods(); len(pods) > 0 {
			t.Errorf("pod %s is left", pods[0].Name)
		}
	})
	t.Run("S1-15 S3-2 S5-5 time for commands", func(t *testing.T) {
		client := serve(t, server.Config{
			Provider: p, Templates: []policy.Template{of("default", "plain")},
			Limits: server.Limits{DefaultTimeout: seconds * time.Second, MaxTimeout: seconds * time.Second},
		})
		box, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "box"})
		if err != nil {
			t.Fatal(err)
		}
		endless(t, box)
		if err := box.Delete(limit(t)); err != nil {
			t.Error(err)
		}
	})
}
