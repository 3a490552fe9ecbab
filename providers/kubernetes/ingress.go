package kubernetes

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandgate/sandgate/providers"
)

// ingressRules are the ingress rules of sandboxes without network: only those that
// the server itself needs.
func (p *Provider) ingressRules() []networkingv1.NetworkPolicyIngressRule {
	if !p.config.Transport.Listens() || len(p.config.peers) == 0 {
		return nil
	}
	return []networkingv1.NetworkPolicyIngressRule{{
		From:  p.config.peers,
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromString(agentPortName))}},
	}}
}

// allowedPeers describes the peers that the policy allows.
func (p *Provider) allowedPeers() string {
	if len(p.config.AgentFrom) == 0 {
		return "no peer"
	}
	return strings.Join(p.config.AgentFrom, " and ")
}

// policyInterval is the interval of checks of the policy that allows this server.
const policyInterval = 10 * time.Second

// keepPolicy restores the policies if a server with another configuration has removed
// this one's rule, until ctx ends.
func (p *Provider) keepPolicy(ctx context.Context) {
	tick := time.NewTicker(policyInterval)
	defer tick.Stop()
	for {
		for mode, name := range denying {
			_, err := p.client.NetworkingV1().NetworkPolicies(p.Namespace).Get(ctx, name, getOptions)
			if err == nil {
				err = p.ensurePolicy(ctx, p.Namespace, mode)
			}
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				p.Log.WarnContext(ctx, "the network policy that allows this server could not be checked", "policy", name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// parsePeer parses a peer that may connect to agents: NAMESPACE/LABEL=VALUE,… for
// pods, or a range of addresses.
func parsePeer(text string) (networkingv1.NetworkPolicyPeer, error) {
	var none networkingv1.NetworkPolicyPeer
	if _, _, err := net.ParseCIDR(text); err == nil {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: text}}, nil
	}
	malformed := fmt.Errorf("%q is neither NAMESPACE/LABEL=VALUE,… nor a range of addresses such as 10.0.0.0/8: %w", text, providers.ErrInvalid)
	namespace, selector, ok := strings.Cut(text, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 {
		return none, malformed
	}
	pods, err := metav1.ParseToLabelSelector(selector)
	if err != nil {
		return none, fmt.Errorf("%q: %w: %w", text, err, providers.ErrInvalid)
	}
	// The parser takes more than an empty text for a selector of all pods.
	if len(pods.MatchLabels)+len(pods.MatchExpressions) == 0 {
		return none, malformed
	}
	spaces := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	return networkingv1.NetworkPolicyPeer{NamespaceSelector: spaces, PodSelector: pods}, nil
}
