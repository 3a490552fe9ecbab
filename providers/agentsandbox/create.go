package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// cleanupTimeout bounds the removal of what a failed creation left.
const cleanupTimeout = time.Minute

// errAgain: the joined sandbox was deleted, or one of the name was being deleted.
var errAgain = errors.New("try again")

// Create makes a claim and sees to the agent in its pod.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	o, err := decodeOptions(spec)
	if err != nil {
		return providers.Info{}, nil, err
	}
	for {
		var info providers.Info
		var conn net.Conn
		if o.adopts() {
			info, conn, err = p.adopt(ctx, name, spec, o)
		} else {
			info, conn, err = p.claim(ctx, name, spec, o)
		}
		if !errors.Is(err, errAgain) {
			return info, conn, err
		}
		if ctx.Err() != nil {
			return providers.Info{}, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
		}
	}
}

// claim makes a claim, or joins the one that is there.
func (p *Provider) claim(ctx context.Context, name string, spec providers.Spec, o options) (providers.Info, net.Conn, error) {
	adopted := make(chan error, 1)
	go func() {
		_, err := p.findAdopted(ctx, name)
		adopted <- err
	}()
	pool, err := p.poolFor(ctx, spec, o)
	switch there := <-adopted; {
	case there == nil:
		return providers.Info{}, nil, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	case !errors.Is(there, providers.ErrNotFound):
		return providers.Info{}, nil, there
	case err != nil:
		return providers.Info{}, nil, err
	}
	wanted, err := p.newClaim(name, spec, o, pool)
	if err != nil {
		return providers.Info{}, nil, err
	}
	made, err := p.claims.create(ctx, wanted)
	switch {
	case err == nil:
		info, conn, err := p.finish(ctx, ofClaim(made))
		if err != nil {
			return providers.Info{}, nil, errors.Join(err, p.undo(ctx, made))
		}
		info.Created = true
		return info, conn, nil
	case apierrors.IsAlreadyExists(err):
		return p.join(ctx, name, spec)
	case ctx.Err() != nil:
		// It may have been created all the same.
		return providers.Info{}, nil, errors.Join(kube.WrapCreate(ctx, "create SandboxClaim "+name, err), p.undo(ctx, wanted))
	default:
		return providers.Info{}, nil, kube.WrapCreate(ctx, "create SandboxClaim "+name, err)
	}
}

// newClaim is the claim for a sandbox.
func (p *Provider) newClaim(name string, spec providers.Spec, o options, pool string) (*claim, error) {
	r := newRecord(spec)
	text, err := r.encode()
	if err != nil {
		return nil, err
	}
	c := &claim{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: p.Namespace, Labels: recordLabels(kindSandbox, spec),
		Annotations: map[string]string{annotationRecord: text, annotationCreation: shared.Random()},
	}}
	c.Labels[labelPool] = shared.Digest(pool)
	c.Spec.WarmPoolRef.Name = pool
	c.Spec.Lifecycle = r.lifecycle(p.config.IdleGrace, o.TTLAfterFinished)
	c.Spec.AdditionalPodMetadata = podMetadata{Labels: o.PodLabels, Annotations: o.PodAnnotations}
	for _, k := range slices.Sorted(maps.Keys(spec.Env)) {
		c.Spec.Env = append(c.Spec.Env, envVar{Name: k, Value: spec.Env[k], ContainerName: o.Container})
	}
	for _, v := range o.VolumeClaimTemplates {
		c.Spec.VolumeClaimTemplates = append(c.Spec.VolumeClaimTemplates, v.volume())
	}
	return c, nil
}

// join waits for a sandbox of the name that another call created or creates.
func (p *Provider) join(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	c, err := p.claims.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return providers.Info{}, nil, errAgain
	}
	if err != nil {
		return providers.Info{}, nil, kube.Wrap(ctx, "sandbox "+name, err)
	}
	if !ours(c.Labels, kindSandbox) {
		return providers.Info{}, nil, fmt.Errorf("a SandboxClaim %s is there, and it is not Sandgate's: %w", name, providers.ErrExists)
	}
	s := ofClaim(c)
	if s.deleting {
		if err := p.awaitGone(ctx, c); err != nil {
			return providers.Info{}, nil, err
		}
		return providers.Info{}, nil, errAgain
	}
	if s.broken == nil && s.record.Spec.Hash != spec.Hash {
		return providers.Info{}, nil, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	}
	pod, err := p.pod(ctx, s)
	if err != nil {
		return providers.Info{}, nil, err
	}
	switch info := s.info(pod); info.State {
	case providers.StateFailed:
		return providers.Info{}, nil, providers.NotActive(info, "sandbox %q has ended (%s) and must be deleted first", info.Spec.ID, info.Message)
	case providers.StateSuspended:
		return info, nil, nil
	}
	info, conn, err := p.finish(ctx, s)
	if err != nil && ctx.Err() == nil && (errors.Is(err, errGone) || errors.Is(p.stillThere(ctx, s), errGone)) {
		// The call that began it has given up and deleted it.
		return providers.Info{}, nil, errAgain
	}
	return info, conn, err
}

// finish waits until a sandbox is ready, sees to its agent, and returns a
// connection on which that has spoken.
func (p *Provider) finish(ctx context.Context, s observed) (providers.Info, net.Conn, error) {
	early := &speculativeDial{}
	defer early.drop()
	s, at, err := p.await(ctx, s, early)
	if err != nil {
		return providers.Info{}, nil, err
	}
	// One that is resumed was checked before. Its Info reports what has changed since.
	if s.seen == "" {
		if err := p.checkNetwork(ctx, s.record.Spec, at.pod); err != nil {
			return providers.Info{}, nil, err
		}
	}
	conn, n := early.take(s.sandbox)
	if conn == nil {
		if conn, n, err = p.connect(ctx, at); err != nil {
			return providers.Info{}, nil, err
		}
	}
	info := p.info(ctx, s, n.on(at.pod))
	info.Incarnation, info.Transport = incarnation(at.pod.UID, at.id, n.Generation), string(kube.TransportOf(conn))
	return info, conn, nil
}

// undo removes what a failed creation made. The context may have ended; what
// was begun must go all the same. A claim of the name that another call made
// stays.
func (p *Provider) undo(ctx context.Context, made *claim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for {
		now, err := p.claims.get(ctx, made.Name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return kube.Wrap(ctx, "remove what was made of "+made.Name, err)
		case now.Annotations[annotationCreation] != made.Annotations[annotationCreation]:
			return nil
		}
		err = p.remove(ctx, now)
		switch {
		case errors.Is(err, providers.ErrNotFound):
			return nil
		case !apierrors.IsConflict(err) || ctx.Err() != nil:
			return err
		}
	}
}
