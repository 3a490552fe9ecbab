package kubernetes

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

// asksAgent makes the agent of a pod its name server.
func asksAgent(s *core.PodSpec) {
	s.DNSPolicy, s.DNSConfig = core.DNSNone, &core.PodDNSConfig{Nameservers: []string{"127.0.0.1"}}
	s.SecurityContext.Sysctls = []core.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
}

// denied is a SandboxTemplate's part that denies its pods all egress.
var denied = map[string]any{"networkPolicy": map[string]any{"egress": []any{}}}

// proxied are sandboxes with PROXY of the SandboxTemplate "denied".
func proxied(r *asHarness, options string, pool int) proxySubstrate {
	return proxySubstrate{open: func(t *testing.T) closingProvider { return r.open(t) }, options: json.RawMessage(options), pool: pool}
}

// fetches expects an allowed name's content, by the proxy and by the name's address,
// and a refusal of another.
func fetches(t *testing.T, box *sandgate.Sandbox, port uint32) {
	t.Helper()
	for _, script := range []string{fetching("ok.example", port), withoutProxy + fetching("ok.example", port)} {
		if got, code := sh(t, box, script); got != "content" || code != 0 {
			t.Errorf("%s: %q, exit code %d", script, got, code)
		}
	}
	if got, code := sh(t, box, fetching("other.example", port)); code == 0 || !strings.Contains(got, "403") {
		t.Errorf("refused: %q, exit code %d", got, code)
	}
}

// TestAgentSandboxProxy holds pods of agent-sandbox to the network mode PROXY.
func TestAgentSandboxProxy(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	r.template("denied", restricted(image(), asksAgent), denied)
	proxied(r, `{"sandbox_template": "denied"}`, 0).hold(t)
}

// Pods of a pool have their agent before they are claimed, also one that was started
// for another network.
func TestAgentSandboxProxyPools(t *testing.T) {
	t.Parallel()
	port := contentServer(t)
	create := func(t *testing.T, s *proxyServer) *sandgate.Sandbox {
		t.Helper()
		box, _, err := s.client.Create(limit(t), sandgate.CreateRequest{Spec: &sandgate.Spec{Network: allowing("ok.example", port)}})
		if err != nil {
			t.Fatal(err)
		}
		if !box.Created().GetFromPool() {
			t.Errorf("not from the pool: %v", box.Created())
		}
		return box
	}
	t.Run("claimed, changed, suspended and resumed", func(t *testing.T) {
		t.Parallel()
		r := newASHarness(t)
		r.template("denied", restricted(image(), asksAgent), denied)
		s := proxied(r, `{"sandbox_template": "denied"}`, 1).serve(t, port)
		for ctx := limit(t); ; {
			status, err := s.client.PoolStatus(ctx, "default")
			if err != nil {
				t.Fatal(err)
			}
			if status.GetAvailable() == 1 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		box := create(t, s)
		fetches(t, box, port)
		if _, err := s.client.Suspend(limit(t), box.ID()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.Resume(limit(t), box.ID()); err != nil {
			t.Fatal(err)
		}
		box = s.client.Sandbox(box.ID()) // the former handle expects the former incarnation
		fetches(t, box, port)
		// Rules about requests make the server end TLS; commands trust its certificate.
		rule := &sandboxv1.EgressRule{Hosts: []string{"ok.example"}, Ports: []uint32{443}, Methods: []string{"GET"}}
		if _, err := s.client.Update(limit(t), box.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{rule}}}); err != nil {
			t.Fatal(err)
		}
		if got, code := sh(t, box, `grep -c "BEGIN CERTIFICATE" "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS"`); code != 0 {
			t.Errorf("certificates: %q, exit code %d", got, code)
		}
		if got, code := sh(t, box, fetching("ok.example", port)); code == 0 {
			t.Errorf("the former rule: %q", got)
		}
	})
	t.Run("claimed after another network's agent", func(t *testing.T) {
		t.Parallel()
		r := newASHarness(t)
		r.template("denied", restricted(image(), asksAgent), denied)
		r.pool("theirs", "denied", 1)
		p := r.open(t)
		t.Cleanup(func() { _ = p.Close() })
		// The names of templates differ, and their pool is one.
		spec := asSpec(`{"pool": "theirs"}`)
		if err := p.KeepPools(limit(t), []providers.Pool{{Template: "default", Spec: spec, Target: 1}}); err != nil {
			t.Fatal(err)
		}
		injected := func(pod core.Pod) bool { return pod.Annotations["sandgate.dev/agent"] != "" }
		for ctx := limit(t); !slices.ContainsFunc(r.pods(), injected); {
			select {
			case <-ctx.Done():
				t.Fatal("the pool's pod gets no agent")
			case <-time.After(100 * time.Millisecond):
			}
		}
		fetches(t, create(t, proxied(r, `{"pool": "theirs"}`, 0).serve(t, port)), port)
	})
}

// What a SandboxTemplate lets out is refused, and the refusal holds the patch that
// cures it.
func TestAgentSandboxProxyIsRefused(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]map[string]any{
		"NetworkPolicy plain-network-policy allows egress": nil, // the controller's own
		"no NetworkPolicy denies egress":                   {"networkPolicyManagement": "Unmanaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := asOpen(t, more)
			spec := named(asSpec(`{"sandbox_template": "plain"}`), "box")
			spec.Network = providers.NetworkProxy
			_, err := providertest.Create(limit(t), p, "box", spec)
			if !errors.Is(err, providers.ErrUnsupported) || !strings.Contains(err.Error(), name) {
				t.Fatal(err)
			}
			r.assertNothingLeft(t, "box")
			stated := spec
			stated.TemplateOptions = json.RawMessage(`{"sandbox_template": "plain", "egress_denied": true}`)
			if _, err := providertest.Create(limit(t), p, "stated", named(stated, "stated")); err != nil {
				t.Errorf("the operator states that egress is denied: %v", err)
			}
			_, patch, _ := strings.Cut(err.Error(), "\nspec:\n")
			patched, err := yaml.YAMLToJSON([]byte("spec:\n" + patch))
			if err != nil {
				t.Fatal(err)
			}
			templates := r.dynamic.Resource(sandboxTemplates).Namespace(r.namespace)
			if _, err := templates.Patch(limit(t), "plain", types.MergePatchType, patched, meta.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			// The controller changes the NetworkPolicy a moment later.
			for ctx := limit(t); ; {
				_, err = providertest.Create(ctx, p, "box", spec)
				if !errors.Is(err, providers.ErrUnsupported) || ctx.Err() != nil {
					break
				}
			}
			if err != nil {
				t.Fatalf("after the patch: %v", err)
			}
			info, err := p.Get(limit(t), "box")
			if err != nil || !slices.ContainsFunc(info.NotEnforced, func(s string) bool { return strings.HasPrefix(s, "network: a NetworkPolicy denies egress, as far as") }) ||
				slices.ContainsFunc(info.NotEnforced, func(s string) bool { return strings.HasPrefix(s, "names: ") }) {
				t.Errorf("%+v, %v", info, err)
			}
		})
	}
}
