package kubernetes

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

func podIPProvider(t *testing.T, more ...func(*Config)) *Provider {
	t.Helper()
	c := Config{AgentImage: "agent:1", Image: "image:1", Transport: TransportPodIP, AgentPort: 8888}
	for _, change := range more {
		change(&c)
	}
	c, err := c.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return &Provider{config: c, agents: kube.NewAgents(nil, c.Transport, c.Logger)}
}

// TestS5_5_Port: a pod whose agent is reached by address has a port of the
// operator's choice, and its secret by reference only.
func TestS5_5_Port(t *testing.T) {
	p := podIPProvider(t)
	spec := withOptions("")
	spec.Env = map[string]string{"A": "b"}
	pl, err := p.plan("name", spec)
	if err != nil {
		t.Fatal(err)
	}
	pod := pl.makePod()
	if err := pl.finish(pod); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if agentPort(pod) != 8888 || !strings.Contains(strings.Join(c.Command, " "), "--listen-tcp :8888") {
		t.Errorf("port %d, command %q", agentPort(pod), c.Command)
	}
	data := pl.secretData()
	if data["v0"] != "b" || data[kube.SecretKey] != pl.agentSecret.Text() || secretOf(pod) != pl.secret {
		t.Errorf("the secret has %d values", len(data))
	}
	if strings.Contains(pod.String(), data[kube.SecretKey]) {
		t.Error("the pod shows its agent's secret")
	}
	other, err := p.plan("name", spec)
	if err != nil || other.agentSecret == pl.agentSecret || other.secret == pl.secret {
		t.Errorf("two pods of one name share a secret: %v", err)
	}
	if other.poolKey() != pl.poolKey() {
		t.Error("the secret is part of what makes pods interchangeable")
	}
	byExec, err := planOf(t, spec)
	if err != nil || byExec.poolKey() == pl.poolKey() {
		t.Errorf("pods that listen pass for those that do not: %v", err)
	}
	plain := byExec.makePod()
	if agentPort(plain) != 0 || strings.Contains(plain.String(), secretVariable) || byExec.secretData()[kube.SecretKey] != "" {
		t.Errorf("a pod that is reached by exec listens: %v", plain)
	}
}

// TestAgentsListenUnlessTheTransportIsExec: agents listen unless the transport is exec, and only pods that
// were made so are reached at their address.
func TestAgentsListenUnlessTheTransportIsExec(t *testing.T) {
	made := map[Transport]*corev1.Pod{}
	for _, transport := range []Transport{TransportExec, TransportPodIP, TransportAuto} {
		p := podIPProvider(t, func(c *Config) { c.Transport, c.AgentFrom = transport, []string{"a/b=c"} })
		pl, err := p.plan("name", withOptions(""))
		if err != nil {
			t.Fatal(err)
		}
		made[transport] = pl.makePod()
		if open := len(p.denyAll(providers.NetworkNone).Spec.Ingress) > 0; open != (transport != TransportExec) {
			t.Errorf("%s: the policy allows connections: %v", transport, open)
		}
	}
	for _, c := range []struct{ made, by, want Transport }{
		{TransportExec, TransportExec, TransportExec},
		{TransportExec, TransportPodIP, TransportExec},
		{TransportPodIP, TransportExec, TransportExec},
		{TransportPodIP, TransportPodIP, TransportPodIP},
		{TransportAuto, TransportPodIP, TransportPodIP},
		{TransportPodIP, TransportAuto, TransportPodIP},
		{TransportExec, TransportAuto, TransportExec},
	} {
		p := podIPProvider(t, func(config *Config) { config.Transport = c.by })
		if got := p.transport(made[c.made]); got != string(c.want) {
			t.Errorf("a server with %s reaches a pod made with %s by %s", c.by, c.made, got)
		}
	}
}

func TestOverridesKeepTheAgentsPort(t *testing.T) {
	sandbox := func(fields string) string {
		return `{"pod_overrides": {"containers": [{"name": "sandbox", ` + fields + `}]}}`
	}
	p := podIPProvider(t)
	for _, bad := range []string{
		sandbox(`"ports": [{"containerPort": 8888, "name": "mine", "protocol": "TCP"}]`),
		sandbox(`"ports": [{"containerPort": 8888, "protocol": "TCP", "$patch": "delete"}]`),
		sandbox(`"env": [{"name": "SANDGATE_AGENT_SECRET", "value": "known"}]`),
		sandbox(`"env": [{"name": "SANDGATE_AGENT_SECRET", "$patch": "delete"}]`),
	} {
		if _, err := p.plan("name", withOptions(bad)); !errors.Is(err, providers.ErrForbidden) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := p.plan("name", withOptions(sandbox(`"ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "b"}]`))); err != nil {
		t.Errorf("ports and variables of its own: %v", err)
	}
	spec := withOptions("")
	spec.Env = map[string]string{secretVariable: "known"}
	if _, err := p.plan("name", spec); !errors.Is(err, providers.ErrForbidden) {
		t.Errorf("a caller's own secret: %v", err)
	}
}

// TestS5_9_WaysIn: the policy lets in the servers and nobody else, and nobody at
// all unless it is said who they are.
func TestS5_9_WaysIn(t *testing.T) {
	for _, p := range []*Provider{
		podIPProvider(t),
		podIPProvider(t, func(c *Config) { c.Transport, c.AgentFrom = TransportExec, []string{"a/b=c"} }),
	} {
		if policy := p.denyAll(providers.NetworkNone); len(policy.Spec.Ingress) > 0 || len(policy.Spec.PolicyTypes) != 2 {
			t.Errorf("%s: %+v", p.config.Transport, policy.Spec)
		}
	}
	p := podIPProvider(t, func(c *Config) { c.AgentFrom = []string{"sandgate/app=server,tier in (a,b)", "10.1.0.0/16"} })
	policy := p.denyAll(providers.NetworkNone)
	if len(policy.Spec.Ingress) != 1 || len(policy.Spec.Egress) != 0 {
		t.Fatalf("%+v", policy.Spec)
	}
	rule := policy.Spec.Ingress[0]
	if len(rule.From) != 2 || len(rule.Ports) != 1 || rule.Ports[0].Port.StrVal != agentPortName || *rule.Ports[0].Protocol != corev1.ProtocolTCP {
		t.Fatalf("%+v", rule)
	}
	pods, addresses := rule.From[0], rule.From[1]
	if pods.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "sandgate" || pods.PodSelector.MatchLabels["app"] != "server" ||
		len(pods.PodSelector.MatchExpressions) != 1 || pods.IPBlock != nil {
		t.Errorf("pods %+v", pods)
	}
	if addresses.IPBlock == nil || addresses.IPBlock.CIDR != "10.1.0.0/16" || addresses.PodSelector != nil {
		t.Errorf("addresses %+v", addresses)
	}
}

func TestTransportIsChecked(t *testing.T) {
	for _, c := range []Config{
		{Transport: "router"}, {Transport: TransportPodIP, AgentPort: 22}, {Transport: TransportPodIP, AgentPort: 70000},
		{AgentFrom: []string{""}}, {AgentFrom: []string{"sandgate"}}, {AgentFrom: []string{"sandgate/"}}, {AgentFrom: []string{"/app=x"}},
		{AgentFrom: []string{"Sandgate!/app=x"}}, {AgentFrom: []string{"ns/app=b c"}}, {AgentFrom: []string{"10.0.0.0/33"}}, {AgentFrom: []string{"10.0.0.1"}},
	} {
		c.AgentImage = "agent:1"
		if _, err := c.withDefaults(); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if c, err := (Config{AgentImage: "agent:1"}).withDefaults(); err != nil || c.Transport != TransportAuto {
		t.Errorf("by default: %v, %v", c.Transport, err)
	}
}

func FuzzParsePeer(f *testing.F) {
	for _, s := range []string{"ns/app=x", "10.0.0.0/8", "::/0", "ns/a in (b,c)", "a/b", "a/\x00", "/", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		peer, err := parsePeer(text)
		if err != nil {
			if !errors.Is(err, providers.ErrInvalid) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		pods := peer.PodSelector != nil && len(peer.PodSelector.MatchLabels)+len(peer.PodSelector.MatchExpressions) > 0
		if pods == (peer.IPBlock != nil) || pods != (peer.NamespaceSelector != nil) {
			t.Errorf("%q lets in %+v", text, peer)
		}
	})
}
