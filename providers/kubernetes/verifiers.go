package kubernetes

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// A verification takes two pods. One listens. The other connects to it in three steps,
// each a container: until it gets through, while no policy selects it; until it gets
// through no more, with the label of sandboxes without network; and until it gets through
// again, without the label. So nothing but the policy can have been in the way.
const (
	stepBefore = "before"
	stepUnder  = "under"
	stepAfter  = "after"
)

const (
	verifierPort = "7778"
	// verifierStep bounds a step. Networks apply a policy to a pod within seconds.
	verifierStep = 30 * time.Second
	// verifyTimeout bounds a verification, and the lives of its pods.
	verifyTimeout = 5 * time.Minute
	// notReachedCode is the exit code of "sandgate-agent reach" for a port that did not
	// become what the step waits for.
	notReachedCode = 3
)

var errSlowVerification = fmt.Errorf("it took too long: %w", providers.ErrStartTimeout)

// verifierResources are the limits of such a pod.
var verifierResources = providers.Resources{MemoryBytes: 64 << 20, CPUMillis: 100, DiskBytes: 16 << 20}

var verifierSelector = labels.Set{managedBy: managedByValue, labelKind: kindVerifier}.String()

// verifyNetwork finds out whether the policy of sandboxes without network keeps a pod
// from another. The policy of the network mode PROXY denies the same.
func (p *Provider) verifyNetwork(ctx context.Context) verification {
	ctx, cancel := context.WithTimeoutCause(ctx, verifyTimeout, errSlowVerification)
	defer cancel()
	defer p.removeVerifiers(context.WithoutCancel(ctx))
	if err := p.ensurePolicy(ctx, p.Namespace, providers.NetworkNone); err != nil {
		return unknown("%v", err)
	}
	pl, err := p.verifierPlan()
	if err != nil {
		return unknown("%v", err)
	}
	run := strings.ToLower(rand.Text()[:8])
	listener, err := p.makeVerifier(ctx, pl.listener("sgverify-"+run+"-listener"))
	if err == nil {
		listener, err = p.awaitRunning(ctx, pl, listener)
	}
	if err != nil {
		return unknown("the pod that listens: %v", err)
	}
	peer := net.JoinHostPort(listener.Status.PodIP, verifierPort)
	pod, err := p.makeVerifier(ctx, pl.connector("sgverify-"+run, peer))
	if err != nil {
		return unknown("the pod that connects: %v", err)
	}
	pod, err = p.follow(ctx, pl, pod, func(pod *corev1.Pod) (bool, error) {
		under := exited(pod, stepBefore, 0) && !exited(pod, stepUnder, 0)
		if (pod.Labels[labelNetwork] != "") == under {
			return false, nil
		}
		return false, p.selectVerifier(ctx, pod, under)
	})
	return outcome(pod, err)
}

// outcome derives the result from how the steps of the pod have ended, and from the
// error of following it.
func outcome(pod *corev1.Pod, err error) verification {
	switch {
	case exited(pod, stepBefore, notReachedCode):
		return unknown("pods of the namespace do not reach each other without the policy either")
	case exited(pod, stepUnder, notReachedCode):
		return verification{Verdict: verdictOpen, Time: time.Now()}
	case exited(pod, stepAfter, notReachedCode):
		return unknown("pods of the namespace do not reach each other without the policy any more")
	case exited(pod, stepBefore, 0) && exited(pod, stepUnder, 0) && exited(pod, stepAfter, 0):
		return verification{Verdict: verdictEnforced, Time: time.Now()}
	default:
		return unknown("the pod that connects: %v", err)
	}
}

// exited reports whether a container has ended with this code.
func exited(pod *corev1.Pod, container string, code int32) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		return c.Name == container && c.State.Terminated != nil && c.State.Terminated.ExitCode == code
	})
}

// verifierPlan is that of a small sandbox from the agent's image, which the cluster
// needs anyway, or else from the default image.
func (p *Provider) verifierPlan() (*plan, error) {
	config := p.config
	config.Transport = TransportExec // no agent runs in these pods
	o, err := decodeOptions(providers.Spec{})
	if err != nil {
		return nil, err
	}
	pl := &plan{config: &config, options: o, ownAccount: p.account, spec: providers.Spec{
		Image: config.AgentImage, Network: providers.NetworkNone, Resources: verifierResources,
	}}
	return pl, pl.finish(pl.makePod())
}

// verifier makes a pod whose containers run "sandgate-agent reach", within the floor of sandboxes.
func (p *plan) verifier(name string) *corev1.Pod {
	pod := p.makePod()
	pod.Name, pod.Labels = name, map[string]string{managedBy: managedByValue, labelKind: kindVerifier}
	pod.Spec.ActiveDeadlineSeconds = new(int64(verifyTimeout / time.Second))
	return pod
}

func (p *plan) reach(name string, args ...string) corev1.Container {
	c := p.container()
	c.Name, c.Command, c.Env = name, append([]string{agentPath, "reach"}, args...), nil
	c.VolumeMounts = []corev1.VolumeMount{{Name: agentVolume, MountPath: agentDir, ReadOnly: true}}
	return c
}

func (p *plan) listener(name string) *corev1.Pod {
	pod := p.verifier(name)
	pod.Spec.Containers = []corev1.Container{p.reach(containerName, "--listen", ":"+verifierPort)}
	return pod
}

func (p *plan) connector(name, peer string) *corev1.Pod {
	step := func(name, until string) corev1.Container {
		return p.reach(name, "--until", until, "--within", verifierStep.String(), peer)
	}
	pod := p.verifier(name)
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, step(stepBefore, "open"), step(stepUnder, "closed"))
	pod.Spec.Containers = []corev1.Container{step(stepAfter, "open")}
	return pod
}

func (p *Provider) makeVerifier(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := p.pods(p.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return made, kube.WrapCreate(ctx, "make it", err)
}

// selectVerifier puts a pod under the policy of sandboxes without network, or takes it
// out.
func (p *Provider) selectVerifier(ctx context.Context, pod *corev1.Pod, under bool) error {
	value := "null"
	if under {
		value = `"` + providers.NetworkNone.String() + `"`
	}
	patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": {%q: %s}}}`, pod.UID, labelNetwork, value)
	_, err := p.pods(p.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return kube.Wrap(ctx, "label it", err)
}

// removeVerifiers deletes the pods of all verifications. Those that it cannot delete end by
// themselves, and the next verification deletes them.
func (p *Provider) removeVerifiers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	list, err := p.pods(p.Namespace).List(ctx, metav1.ListOptions{LabelSelector: verifierSelector})
	if err == nil {
		for i := range list.Items {
			if err = p.deletePod(ctx, &list.Items[i]); err != nil {
				break
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		p.Log.WarnContext(ctx, "pods that verified the network policy are left", "error", err)
	}
}
