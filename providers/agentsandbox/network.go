package agentsandbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// policyTrust is how long the network policies are not read again.
const policyTrust = 10 * time.Second

// policyCache holds the network policies of the namespace. Each of them may open a
// pod, whoever made it.
type policyCache struct {
	mu   sync.Mutex
	read time.Time
	all  []networkingv1.NetworkPolicy
	err  error
	open map[types.UID]struct{} // pods with PROXY that were let out when last looked at
}

// maxOpen bounds the pods of which the log has a warning already.
const maxOpen = 4096

// nowOpen notes whether a pod is let out, and reports whether it was not before.
func (c *policyCache) nowOpen(pod types.UID, open bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !open {
		delete(c.open, pod)
		return false
	}
	if _, known := c.open[pod]; known {
		return false
	}
	if c.open == nil || len(c.open) >= maxOpen {
		c.open = make(map[types.UID]struct{})
	}
	c.open[pod] = struct{}{}
	return true
}

// networkPolicies returns the policies as they were after oldest.
func (p *Provider) networkPolicies(ctx context.Context, oldest time.Time) ([]networkingv1.NetworkPolicy, error) {
	c := &p.policies
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.After(oldest) {
		return c.all, c.err
	}
	now := time.Now()
	list, err := p.networking.NetworkPolicies(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		err = kube.Wrap(ctx, "list the NetworkPolicies of namespace "+p.Namespace, err)
		if ctx.Err() == nil {
			c.read, c.all, c.err = now, nil, err
		}
		return nil, err
	}
	c.read, c.all, c.err = now, list.Items, nil
	return c.all, nil
}

// egressOf returns why a pod may send beyond itself, as far as network policies decide,
// and an empty text if they deny it all egress.
func egressOf(pod *corev1.Pod, policies []networkingv1.NetworkPolicy) string {
	if pod.Spec.HostNetwork {
		return "it has its node's network"
	}
	denied := false
	for i := range policies {
		policy := &policies[i]
		if !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err == nil && !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		// Policies add up, so one rule is enough.
		if err != nil || len(policy.Spec.Egress) > 0 {
			return fmt.Sprintf("NetworkPolicy %s allows egress", policy.Name)
		}
		denied = true
	}
	if !denied {
		return "no NetworkPolicy denies egress"
	}
	return ""
}

// checkNetwork returns an error, with the cure, if a sandbox's network is PROXY and
// programs in its pod may connect around the rules.
func (p *Provider) checkNetwork(ctx context.Context, spec providers.Spec, pod *corev1.Pod) error {
	if spec.Network != providers.NetworkProxy || operatorOptions(spec).EgressDenied {
		return nil
	}
	now := time.Now()
	policies, err := p.networkPolicies(ctx, now.Add(-policyTrust))
	if err != nil || egressOf(pod, policies) != "" {
		// They may have been cured since.
		policies, err = p.networkPolicies(ctx, now)
	}
	if err != nil {
		return err
	}
	if why := egressOf(pod, policies); why != "" {
		return fmt.Errorf(`network proxy: %w for pod %s: %s, so programs could connect around the rules
change its SandboxTemplate, or set egress_denied in provider_options of template %q if something else denies egress:
%s`, providers.ErrUnsupported, pod.Name, why, spec.Template, denyingPatch)
	}
	return nil
}

// denyingPatch is what a SandboxTemplate needs for the network mode PROXY: pods
// without egress that ask the agent for names.
const denyingPatch = `spec:
  networkPolicyManagement: Managed
  networkPolicy:
    egress: []
  podTemplate:
    spec:
      dnsPolicy: None
      dnsConfig:
        nameservers: [127.0.0.1]
      securityContext:
        sysctls:
        - {name: ` + portSysctl + `, value: "0"}`

// portSysctl is the first port that programs without privileges may listen on. The
// agent's name server needs 53.
const portSysctl = "net.ipv4.ip_unprivileged_port_start"

// unenforced returns what a pod lacks of the network mode PROXY. A policy that was opened
// after the creation is logged, once until it is closed again.
func (p *Provider) unenforced(ctx context.Context, spec providers.Spec, pod *corev1.Pod) []string {
	var out []string
	if !operatorOptions(spec).EgressDenied {
		policies, err := p.networkPolicies(ctx, time.Now().Add(-policyTrust))
		why := ""
		if err == nil {
			why = egressOf(pod, policies)
			if p.policies.nowOpen(pod.UID, why != "") {
				p.Log.WarnContext(ctx, "programs of a sandbox with network proxy can connect around the rules",
					"sandbox_id", spec.ID, "tenant", spec.Tenant, "pod", pod.Name, "reason", why)
			}
		}
		switch {
		case err != nil:
			out = append(out, "network: whether a NetworkPolicy denies egress could not be read: "+err.Error())
		case why != "":
			out = append(out, "network: "+why+", so programs can connect around the rules")
		case !p.config.NetworkPolicies:
			out = append(out, "network: a NetworkPolicy denies egress, as far as the cluster's network enforces it")
		}
	}
	if !asksAgent(pod) && !readAnnotation(pod).Redirect {
		out = append(out, "names: the SandboxTemplate sets no name server 127.0.0.1, or not the sysctl "+portSysctl+", and the agent redirects no connects; programs need the proxy")
	}
	return out
}

// asksAgent reports whether programs in a pod ask the agent for names, and whether it
// may answer.
func asksAgent(pod *corev1.Pod) bool {
	dns, security := pod.Spec.DNSConfig, pod.Spec.SecurityContext
	return pod.Spec.DNSPolicy == corev1.DNSNone && dns != nil && len(dns.Nameservers) > 0 && dns.Nameservers[0] == "127.0.0.1" &&
		security != nil && slices.Contains(security.Sysctls, corev1.Sysctl{Name: portSysctl, Value: "0"})
}
