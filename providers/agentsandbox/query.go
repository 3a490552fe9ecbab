package agentsandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Get returns one sandbox.
func (p *Provider) Get(ctx context.Context, name string) (providers.Info, error) {
	s, pod, err := p.look(ctx, name)
	if err != nil {
		return providers.Info{}, err
	}
	return p.info(ctx, s, pod), nil
}

// token says where a list goes on. The cluster's own token may outlive none of
// its compactions; then it is ErrTokenExpired.
type token struct {
	// Continue is the cluster's token for the page that is being given out.
	Continue string `json:"c,omitempty"`
	// After is the last name that was given out.
	After string `json:"a,omitempty"`
}

const tokens shared.Tokens = "agentsandbox1"

func (t token) encode() (string, error) {
	data, err := json.Marshal(t)
	return tokens.Encode(string(data)), err
}

func decodeToken(text string) (token, error) {
	var t token
	position, err := tokens.Decode(text)
	if err != nil || position == "" {
		return t, err
	}
	if json.Unmarshal([]byte(position), &t) != nil {
		return t, fmt.Errorf("list: %w", providers.ErrTokenInvalid)
	}
	return t, nil
}

// List reads a page of claims, which the cluster gives in the order of their
// names, and merges what is wrapped into it.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	t, err := decodeToken(q.Token)
	if err != nil {
		return providers.Page{}, err
	}
	if !q.DueBy.IsZero() {
		return p.due(ctx, q, t)
	}
	limit := max(q.Limit, 1)
	opts := metav1.ListOptions{LabelSelector: recordSelector(kindSandbox, q), Limit: int64(limit), Continue: t.Continue}
	if q.Network == providers.NetworkProxy && t.Continue == "" {
		opts.ResourceVersion = kube.FromCache // every server asks again and again
	}
	claims, next, err := p.claims.list(ctx, opts)
	if apierrors.IsBadRequest(err) {
		return providers.Page{}, fmt.Errorf("list: %w: %w", err, providers.ErrTokenInvalid)
	}
	if err != nil {
		return providers.Page{}, kube.Wrap(ctx, "list SandboxClaims", err)
	}
	var found []observed
	last := ""
	for _, c := range claims {
		if last = c.Name; c.Name > t.After {
			found = append(found, ofClaim(c))
		}
	}
	if found, err = p.mergeAdopted(ctx, q, found, t.After, last, next != ""); err != nil {
		return providers.Page{}, err
	}
	resume := token{Continue: next, After: last}
	if len(found) > limit {
		found = found[:limit]
		resume = token{Continue: t.Continue, After: found[limit-1].name}
	} else if next == "" {
		resume = token{}
	}
	var page providers.Page
	if resume != (token{}) {
		if page.Next, err = resume.encode(); err != nil {
			return page, err
		}
	}
	infos, err := p.infos(ctx, found)
	for _, info := range infos {
		if q.Matches(info) {
			page.Sandboxes = append(page.Sandboxes, info)
		}
	}
	return page, err
}

const (
	// podsAtOnce bounds the requests for single pods.
	podsAtOnce = 8
	// podsSingly is for how many sandboxes pods are asked for one by one.
	podsSingly = 32
)

// infos adds their pods to sandboxes.
func (p *Provider) infos(ctx context.Context, all []observed) ([]providers.Info, error) {
	out := make([]providers.Info, len(all))
	if len(all) > podsSingly {
		return out, p.infosByList(ctx, all, out)
	}
	errs := make(chan error, len(all))
	slots := make(chan struct{}, podsAtOnce)
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			pod, err := p.pod(ctx, s)
			out[i] = p.info(ctx, s, pod)
			errs <- err
		})
	}
	wg.Wait()
	for range all {
		if err := <-errs; err != nil {
			return nil, err
		}
	}
	return out, nil
}

// podsPerQuestion bounds the hashes in one label selector, which is then no
// longer than 3 KiB.
const podsPerQuestion = 250

// infosByList asks for the pods of many Sandboxes together.
func (p *Provider) infosByList(ctx context.Context, all []observed, out []providers.Info) error {
	byName := make(map[string]*corev1.Pod, len(all))
	for some := range slices.Chunk(all, podsPerQuestion) {
		hashes := make([]string, 0, len(some))
		for _, s := range some {
			if s.sandbox != "" {
				hashes = append(hashes, nameHash(s.sandbox))
			}
		}
		if len(hashes) == 0 {
			continue
		}
		pods, err := p.Core.Pods(p.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: nameHashLabel + " in (" + strings.Join(hashes, ",") + ")", ResourceVersion: kube.FromCache,
		})
		if err != nil {
			return kube.Wrap(ctx, "list pods", err)
		}
		for i := range pods.Items {
			byName[pods.Items[i].Name] = &pods.Items[i]
		}
	}
	for i, s := range all {
		var pod *corev1.Pod
		if found := byName[s.sandbox]; found != nil {
			pod = s.own(found)
		} else if holds(s.ready) {
			// The cache may be behind.
			var err error
			if pod, err = p.pod(ctx, s); err != nil {
				return err
			}
		}
		out[i] = p.info(ctx, s, pod)
	}
	return nil
}

// nameHash is what agent-sandbox labels the pods of a Sandbox with.
func nameHash(sandbox string) string {
	h := fnv.New32a()
	h.Write([]byte(sandbox)) // never fails
	return fmt.Sprintf("%08x", h.Sum32())
}

// Update changes the record, unless it has changed since it was read; then it
// is read again.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	for {
		s, pod, err := p.look(ctx, name)
		if err != nil {
			return providers.Info{}, fmt.Errorf("update %s: %w", name, err)
		}
		if s.deleting || s.broken != nil {
			return providers.Info{}, providers.NotActive(s.info(pod), "update %s: it is being deleted, or its record is broken", name)
		}
		before := s.record.Spec.Labels
		s.record.Apply(c)
		s.record.LastActivity = s.record.LastActivity.UTC().Round(0)
		err = p.write(ctx, s, before)
		switch {
		case err == nil:
			return p.info(ctx, s, pod), nil
		case apierrors.IsConflict(err) && ctx.Err() == nil:
			continue
		default:
			return providers.Info{}, kube.Wrap(ctx, "update "+name, err)
		}
	}
}

// write stores a sandbox's record. The labels before are those to take away.
func (p *Provider) write(ctx context.Context, s observed, before map[string]string) error {
	text, err := s.record.encode()
	if err != nil {
		return err
	}
	labels := make(map[string]any)
	for k, v := range before {
		if k, ok := callerLabel(k, v); ok {
			labels[k] = nil
		}
	}
	for k, v := range s.record.Spec.Labels {
		if k, ok := callerLabel(k, v); ok {
			labels[k] = v
		}
	}
	meta := map[string]any{
		"uid": s.uid, "resourceVersion": s.version, "labels": labels,
		"annotations": map[string]string{annotationRecord: text},
	}
	if s.record.Target != nil {
		return p.writeAdopted(ctx, s.name, meta)
	}
	l := s.record.lifecycle(p.config.IdleGrace, nil)
	_, err = p.claims.patch(ctx, s.name, map[string]any{
		"metadata": meta,
		"spec":     map[string]any{"lifecycle": map[string]any{"shutdownTime": l.ShutdownTime}},
	})
	return err
}
