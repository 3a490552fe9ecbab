package kube

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// restrictedChecks are the checks of API servers in a namespace with the label
// "pod-security.kubernetes.io/enforce: restricted".
var restrictedChecks = sync.OnceValues(func() (policy.Evaluator, error) {
	return policy.NewEvaluator(policy.DefaultChecks(), nil)
})

// CheckRestricted returns an error that names every violation of the "restricted"
// Pod Security Standard, in its latest version, by a pod. The standard's exceptions
// for user namespaces and Windows do not apply.
func CheckRestricted(meta *metav1.ObjectMeta, spec *corev1.PodSpec) error {
	if spec.OS != nil && spec.OS.Name != corev1.Linux {
		return fmt.Errorf("os (%s): must be linux", spec.OS.Name)
	}
	evaluator, err := restrictedChecks()
	if err != nil {
		return err
	}
	strict := *spec
	strict.HostUsers = nil
	latest := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	var below []string
	for _, result := range evaluator.EvaluatePod(latest, meta, &strict) {
		if result.Allowed {
			continue
		}
		one := result.ForbiddenReason
		if result.ForbiddenDetail != "" {
			one += " (" + result.ForbiddenDetail + ")"
		}
		below = append(below, one)
	}
	if len(below) > 0 {
		return fmt.Errorf("the restricted Pod Security Standard does not allow: %s", strings.Join(below, ", "))
	}
	return nil
}
