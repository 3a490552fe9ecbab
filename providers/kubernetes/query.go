package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

var (
	// errUnreadable: another client has written the record.
	errUnreadable = errors.New("the sandbox's record cannot be read")
	// errForeign: an object of another client has the name.
	errForeign = fmt.Errorf("the ConfigMap of this name is no sandbox's: %w", providers.ErrNotFound)
)

// read returns the record of a sandbox.
func (p *Provider) read(ctx context.Context, name string) (*corev1.ConfigMap, *record, error) {
	cm, err := p.records().Get(ctx, name, getOptions)
	if err != nil {
		return nil, nil, kube.Wrap(ctx, "sandbox "+name, err)
	}
	if cm.Labels[labelKind] != kindSandbox {
		return nil, nil, fmt.Errorf("sandbox %s: %w", name, errForeign)
	}
	rec, err := decodeRecord(cm)
	if err != nil {
		return cm, nil, errors.Join(errUnreadable, err)
	}
	return cm, rec, nil
}

// Get returns one sandbox.
func (p *Provider) Get(ctx context.Context, name string) (providers.Info, error) {
	_, rec, err := p.read(ctx, name)
	if errors.Is(err, errUnreadable) {
		return providers.Info{Name: name, State: providers.StateFailed, Message: errUnreadable.Error()}, nil
	}
	if err != nil {
		return providers.Info{}, err
	}
	return p.info(ctx, name, rec)
}

// info returns the current state of a sandbox from its record and its pod.
func (p *Provider) info(ctx context.Context, name string, rec *record) (providers.Info, error) {
	if rec.Phase != phaseActive {
		return p.infoOf(name, rec), nil
	}
	pod, err := p.pods(rec.Namespace).Get(ctx, rec.Pod, getOptions)
	if err != nil && !apierrors.IsNotFound(err) {
		return providers.Info{}, kube.Wrap(ctx, "pod of sandbox "+name, err)
	}
	if err == nil {
		return p.infoWith(name, rec, pod), nil
	}
	// It may have been deleted between the two looks.
	_, now, err := p.read(ctx, name)
	if err != nil {
		return providers.Info{}, err
	}
	return p.infoWith(name, now, nil), nil
}

// infoOf is the Info that the record contains.
func (p *Provider) infoOf(name string, rec *record) providers.Info {
	out := rec.Info(name)
	out.Incarnation, out.FromPool = string(rec.UID), rec.FromPool
	out.Runtime, out.Unprivileged, out.ReadOnlySystem, out.NotEnforced = rec.Runtime, true, !rec.WritableRoot, p.unenforced(rec)
	switch rec.Phase {
	case phaseCreating:
		out.State = providers.StateCreating
	case phaseDeleting:
		out.State = providers.StateDeleting
	case phaseActive:
		out.State = providers.StateActive
	default:
		out.State = providers.StateUnknown
	}
	return out
}

// infoWith combines the record and the pod, which may be nil.
func (p *Provider) infoWith(name string, rec *record, pod *corev1.Pod) providers.Info {
	out := p.infoOf(name, rec)
	if rec.Phase != phaseActive {
		return out
	}
	switch {
	case pod == nil || pod.UID != rec.UID:
		out.State, out.Message = providers.StateFailed, "its pod is gone: another client deleted it, or its node was lost"
	case kube.Ended(pod, containerName) != nil:
		end := kube.Ended(pod, containerName)
		out.State, out.Message, out.Failure = providers.StateFailed, end.Message, end.Failure
	case pod.DeletionTimestamp != nil:
		out.State, out.Message = providers.StateFailed, "its pod is being deleted by another client"
	}
	if pod != nil && pod.UID == rec.UID {
		out.ImageDigest = kube.ImageDigest(pod, containerName)
	}
	if out.State == providers.StateActive {
		out.Transport = p.transport(pod)
	}
	return out
}

// podsPerQuestion bounds the names in one label selector: with the longest names
// the question is still shorter than the 8 KiB that what lies between may allow.
const podsPerQuestion = 100

const tokens shared.Tokens = "kubernetes1"

// List reads records in the order of their names, which is the cluster's order,
// and their pods. A token is the cluster's own and expires with it, after
// minutes.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	token, err := tokens.Decode(q.Token)
	if err != nil {
		return providers.Page{}, err
	}
	list, err := p.records().List(ctx, metav1.ListOptions{
		LabelSelector: recordSelector(q.Tenant, q.Network, q.Labels), Limit: int64(max(q.Limit, 1)), Continue: token,
	})
	if token != "" && apierrors.IsBadRequest(err) {
		return providers.Page{}, fmt.Errorf("list: %w: %w", err, providers.ErrTokenInvalid)
	}
	if err != nil {
		return providers.Page{}, kube.Wrap(ctx, "list", err)
	}
	records := make(map[string]*record, len(list.Items))
	for i := range list.Items {
		rec, err := decodeRecord(&list.Items[i])
		if err != nil {
			p.Log.WarnContext(ctx, "a record cannot be read", "name", list.Items[i].Name, "error", err)
			continue
		}
		if !p.mayMatch(q, rec) {
			continue
		}
		records[list.Items[i].Name] = rec
	}
	infos, err := p.infos(ctx, records)
	if err != nil {
		return providers.Page{}, err
	}
	page := providers.Page{Next: tokens.Encode(list.Continue)}
	for _, info := range infos {
		if q.Matches(info) {
			page.Sandboxes = append(page.Sandboxes, info)
		}
	}
	slices.SortFunc(page.Sandboxes, func(a, b providers.Info) int { return cmp.Compare(a.Name, b.Name) })
	return page, nil
}

// mayMatch leaves out those for which a look at the pod would be in vain: the
// record alone tells all but the state.
func (p *Provider) mayMatch(q providers.Query, rec *record) bool {
	q.States = nil
	return q.Matches(p.infoOf("", rec))
}

// infos joins records with their pods.
func (p *Provider) infos(ctx context.Context, records map[string]*record) ([]providers.Info, error) {
	var out []providers.Info
	var together []string
	for name, rec := range records {
		switch {
		case rec.Phase != phaseActive:
			out = append(out, p.infoOf(name, rec))
		case !rec.OwnNamespace:
			together = append(together, name)
		default:
			info, err := p.info(ctx, name, rec)
			if errors.Is(err, providers.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, info)
		}
	}
	for names := range slices.Chunk(together, podsPerQuestion) {
		list, err := p.pods(p.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: labelName + " in (" + strings.Join(names, ",") + ")", ResourceVersion: kube.FromCache,
		})
		if err != nil {
			return nil, kube.Wrap(ctx, "list pods", err)
		}
		byName := make(map[string]*corev1.Pod, len(list.Items))
		for i := range list.Items {
			byName[list.Items[i].Name] = &list.Items[i]
		}
		for _, name := range names {
			rec := records[name]
			if pod := byName[rec.Pod]; pod != nil && pod.UID == rec.UID {
				out = append(out, p.infoWith(name, rec, pod))
				continue
			}
			// A page shows records as they were, and pods as they were in the cache.
			info, err := p.Get(ctx, name)
			if errors.Is(err, providers.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, info)
		}
	}
	return out, nil
}

// The pauses between tries to change what others change as well.
const (
	conflictPause    = 5 * time.Millisecond
	conflictPauseMax = 200 * time.Millisecond
)

// Update changes the record, again and again until nobody else has changed it
// meanwhile.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	for pause := conflictPause; ; pause = min(2*pause, conflictPauseMax) {
		cm, rec, err := p.read(ctx, name)
		if err != nil {
			return providers.Info{}, fmt.Errorf("update: %w", err)
		}
		if rec.Phase != phaseActive {
			return providers.Info{}, providers.NotActive(p.infoOf(name, rec), "update %s: it is %s", name, rec.Phase)
		}
		rec.Apply(c)
		if err := rec.put(cm); err != nil {
			return providers.Info{}, err
		}
		_, err = p.records().Update(ctx, cm, metav1.UpdateOptions{})
		if err == nil {
			return p.info(ctx, name, rec)
		}
		if !apierrors.IsConflict(err) {
			return providers.Info{}, kube.Wrap(ctx, "update "+name, err)
		}
		select {
		case <-ctx.Done():
			return providers.Info{}, fmt.Errorf("update %s: %w", name, context.Cause(ctx))
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}
