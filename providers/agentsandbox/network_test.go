package agentsandbox

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

const ofTemplate = "0123abcd"

// networkPolicy is about the pods with a label of a template's pods.
func networkPolicy(name string, change ...func(*networkingv1.NetworkPolicySpec)) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testNamespace}}
	policy.Spec.PodSelector.MatchLabels = map[string]string{templateHashLabel: ofTemplate}
	policy.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	for _, c := range change {
		c(&policy.Spec)
	}
	return policy
}

func allowing(s *networkingv1.NetworkPolicySpec) {
	s.Egress = []networkingv1.NetworkPolicyEgressRule{{}}
}

func ingressOnly(s *networkingv1.NetworkPolicySpec) {
	s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
}

func ofOthers(s *networkingv1.NetworkPolicySpec) {
	s.PodSelector.MatchLabels = map[string]string{templateHashLabel: "other"}
}

func ofAll(s *networkingv1.NetworkPolicySpec) { s.PodSelector = metav1.LabelSelector{} }

func proxySpec(options string) providers.Spec {
	return providers.Spec{ID: "d1", Template: "plain", Network: providers.NetworkProxy, TemplateOptions: []byte(options)}
}

// templatePod is a pod of a SandboxTemplate that makes the agent its name server.
func templatePod(change ...func(*corev1.PodSpec)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "d1", Labels: map[string]string{templateHashLabel: ofTemplate}}}
	pod.Spec.DNSPolicy, pod.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: portSysctl, Value: "0"}}}
	for _, c := range change {
		c(&pod.Spec)
	}
	return pod
}

// PROXY needs pods that no policy lets out, and what is refused comes with the cure.
func TestNetworkProxyNeedsDeniedEgress(t *testing.T) {
	const pool = `{"pool": "p"}`
	for name, c := range map[string]struct {
		options  string
		policies []*networkingv1.NetworkPolicy
		pod      *corev1.Pod
		why      string // empty: accepted
	}{
		"denied":                       {pool, []*networkingv1.NetworkPolicy{networkPolicy("t")}, templatePod(), ""},
		"denied for all pods":          {pool, []*networkingv1.NetworkPolicy{networkPolicy("all", ofAll)}, templatePod(), ""},
		"no policy":                    {pool, nil, templatePod(), "no NetworkPolicy denies egress"},
		"a policy of others":           {pool, []*networkingv1.NetworkPolicy{networkPolicy("t", ofOthers)}, templatePod(), "no NetworkPolicy denies egress"},
		"a policy about ingress":       {pool, []*networkingv1.NetworkPolicy{networkPolicy("t", ingressOnly)}, templatePod(), "no NetworkPolicy denies egress"},
		"the controller's own":         {pool, []*networkingv1.NetworkPolicy{networkPolicy("t", allowing)}, templatePod(), "NetworkPolicy t allows egress"},
		"one denies, another allows":   {pool, []*networkingv1.NetworkPolicy{networkPolicy("t"), networkPolicy("open", ofAll, allowing)}, templatePod(), "NetworkPolicy open allows egress"},
		"others are allowed":           {pool, []*networkingv1.NetworkPolicy{networkPolicy("t"), networkPolicy("open", ofOthers, allowing)}, templatePod(), ""},
		"the node's network":           {pool, []*networkingv1.NetworkPolicy{networkPolicy("t")}, templatePod(func(s *corev1.PodSpec) { s.HostNetwork = true }), "node's network"},
		"the operator states it":       {`{"pool": "p", "egress_denied": true}`, nil, templatePod(), ""},
		"the operator states it's not": {`{"pool": "p", "egress_denied": false}`, nil, templatePod(), "no NetworkPolicy denies egress"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			for _, policy := range c.policies {
				if _, err := cluster.p.networking.NetworkPolicies(testNamespace).Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			err := cluster.p.checkNetwork(t.Context(), proxySpec(c.options), c.pod)
			if c.why == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, providers.ErrUnsupported) || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), denyingPatch) {
				t.Errorf("%v", err)
			}
			full := proxySpec(c.options)
			full.Network = providers.NetworkFull
			if err := cluster.p.checkNetwork(t.Context(), full, c.pod); err != nil {
				t.Errorf("network full: %v", err)
			}
		})
	}
}

// A template that the patch of the refusal has changed is accepted.
func TestThatPatchCuresTheRefusal(t *testing.T) {
	var patched struct {
		Spec struct {
			NetworkPolicyManagement string
			NetworkPolicy           struct {
				Egress []networkingv1.NetworkPolicyEgressRule
			}
			PodTemplate struct{ Spec corev1.PodSpec }
		}
	}
	if err := yaml.UnmarshalStrict([]byte(denyingPatch), &patched); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{templateHashLabel: ofTemplate}}, Spec: patched.Spec.PodTemplate.Spec}
	made := networkPolicy("t", func(s *networkingv1.NetworkPolicySpec) { s.Egress = patched.Spec.NetworkPolicy.Egress })
	if why := egressOf(pod, []networkingv1.NetworkPolicy{*made}); why != "" || !asksAgent(pod) || patched.Spec.NetworkPolicyManagement != "Managed" {
		t.Errorf("%q, names: %v, %+v", why, asksAgent(pod), patched)
	}
}

// What has changed since a creation shows, and so does what nobody can know.
func TestInfoOfNetworkProxy(t *testing.T) {
	const pool, stated = `{"pool": "p"}`, `{"pool": "p", "egress_denied": true}`
	const asFar = "network: a NetworkPolicy denies egress, as far as the cluster's network enforces it"
	names := "names: the SandboxTemplate sets no name server 127.0.0.1"
	for name, c := range map[string]struct {
		options  string
		enforced bool
		policy   *networkingv1.NetworkPolicy
		pod      *corev1.Pod
		want     []string // how each begins
	}{
		"denied":                       {pool, false, networkPolicy("t"), templatePod(), []string{asFar}},
		"denied and enforced":          {pool, true, networkPolicy("t"), templatePod(), nil},
		"opened since":                 {pool, true, networkPolicy("t", allowing), templatePod(), []string{"network: NetworkPolicy t allows egress"}},
		"stated":                       {stated, false, networkPolicy("t", allowing), templatePod(), nil},
		"the cluster's names":          {pool, true, networkPolicy("t"), templatePod(func(s *corev1.PodSpec) { s.DNSPolicy = corev1.DNSClusterFirst }), []string{names}},
		"another name server":          {pool, true, networkPolicy("t"), templatePod(func(s *corev1.PodSpec) { s.DNSConfig.Nameservers[0] = "8.8.8.8" }), []string{names}},
		"no port below 1024":           {pool, false, networkPolicy("t"), templatePod(func(s *corev1.PodSpec) { s.SecurityContext = nil }), []string{asFar, names}},
		"that port, and another value": {pool, true, networkPolicy("t"), templatePod(func(s *corev1.PodSpec) { s.SecurityContext.Sysctls[0].Value = "1024" }), []string{names}},
		"redirected":                   {pool, true, networkPolicy("t"), agentAnnotation{Injected: kube.Injected{Redirect: true}}.on(templatePod(func(s *corev1.PodSpec) { s.SecurityContext = nil })), nil},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			cluster.p.config.NetworkPolicies = c.enforced
			if _, err := cluster.p.networking.NetworkPolicies(testNamespace).Create(t.Context(), c.policy, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			got := cluster.p.unenforced(t.Context(), proxySpec(c.options), c.pod)
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// The policies are read once in policyTrust, unless they prevent a creation.
func TestPoliciesAreReadAgainIfTheyPreventACreation(t *testing.T) {
	c := newCluster(t)
	reads := 0
	var failure error
	c.core.PrependReactor("list", "networkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		reads++
		return failure != nil, nil, failure
	})
	check := func(what string, want error, n int) {
		t.Helper()
		if err := c.p.checkNetwork(t.Context(), proxySpec(`{"pool": "p"}`), templatePod()); !errors.Is(err, want) || reads != n {
			t.Errorf("%s: %d reads, want %d; %v", what, reads, n, err)
		}
	}
	failure = apierrors.NewForbidden(schema.GroupResource{Resource: "networkpolicies"}, "", nil)
	check("no right to read them", providers.ErrForbidden, 1)
	if got := c.p.unenforced(t.Context(), proxySpec(`{"pool": "p"}`), templatePod()); len(got) != 1 || !strings.Contains(got[0], "could not be read") || reads != 1 {
		t.Errorf("%d reads: %q", reads, got)
	}
	failure = nil
	check("no policy", providers.ErrUnsupported, 2)
	policies := c.p.networking.NetworkPolicies(testNamespace)
	if _, err := policies.Create(t.Context(), networkPolicy("t"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	check("one since", nil, 3)
	check("still", nil, 3)
	c.p.policies.read = time.Now().Add(-policyTrust)
	check("later", nil, 4)
}

// A policy that is opened after the creation is logged for each sandbox, once until it is
// closed again.
func TestPolicyOpenedLaterIsLoggedOnce(t *testing.T) {
	c := newCluster(t)
	var log bytes.Buffer
	c.p.Log = slog.New(slog.NewTextHandler(&log, nil))
	policies := c.p.networking.NetworkPolicies(testNamespace)
	if _, err := policies.Create(t.Context(), networkPolicy("t"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	change := func(spec ...func(*networkingv1.NetworkPolicySpec)) {
		t.Helper()
		if _, err := policies.Update(t.Context(), networkPolicy("t", spec...), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.p.policies.read = time.Time{}
	}
	look := func(what string, warnings int) {
		t.Helper()
		for range 2 {
			for _, name := range []string{"d1", "d2"} {
				pod, spec := templatePod(), proxySpec(`{"pool": "p"}`)
				pod.Name, pod.UID, spec.ID = name, types.UID(name), name
				_ = c.p.unenforced(t.Context(), spec, pod)
			}
		}
		got := log.String()
		if n := strings.Count(got, "level=WARN"); n != warnings || n > 0 && (!strings.Contains(got, "sandbox_id=d1") || !strings.Contains(got, "sandbox_id=d2") || !strings.Contains(got, "NetworkPolicy t allows egress")) {
			t.Errorf("%s: %d warnings, want %d: %s", what, n, warnings, got)
		}
		log.Reset()
	}
	look("denied", 0)
	change(allowing)
	look("opened", 2)
	look("still open", 0)
	change()
	look("denied again", 0)
	change(allowing)
	look("opened again", 2)
}

// Servers that share a namespace look for the sandboxes with PROXY only.
func TestRecordsAreFoundByTheirNetwork(t *testing.T) {
	for _, spec := range []providers.Spec{{Network: providers.NetworkProxy}, {Network: providers.NetworkNone}} {
		selector, err := metav1.ParseToLabelSelector(recordSelector(kindSandbox, providers.Query{Network: providers.NetworkProxy}))
		if err != nil {
			t.Fatal(err)
		}
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := s.Matches(labels.Set(recordLabels(kindSandbox, spec))), spec.Network == providers.NetworkProxy; got != want {
			t.Errorf("network %v: found %v", spec.Network, got)
		}
	}
}
