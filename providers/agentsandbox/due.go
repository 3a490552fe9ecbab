package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// due is List for those whose lifetime may have ended. The record in a claim's
// metadata tells, so nothing else of a claim is fetched, and no pod, before that
// is known.
func (p *Provider) due(ctx context.Context, q providers.Query, t token) (providers.Page, error) {
	limit := max(q.Limit, 1)
	claims, err := p.claimsMeta.List(ctx, metav1.ListOptions{
		LabelSelector: recordSelector(kindSandbox, q), Limit: int64(limit), Continue: t.Continue,
	})
	if apierrors.IsBadRequest(err) {
		return providers.Page{}, fmt.Errorf("list: %w: %w", err, providers.ErrTokenInvalid)
	}
	if err != nil {
		return providers.Page{}, kube.Wrap(ctx, "list SandboxClaims", err)
	}
	adopted, err := p.Core.ConfigMaps(p.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: recordSelector(kindAdopted, q), ResourceVersion: kube.FromCache,
	})
	if err != nil {
		return providers.Page{}, kube.Wrap(ctx, "list ConfigMaps", err)
	}
	resume := token{Continue: claims.GetContinue()}
	var names []string
	for i := range claims.Items {
		meta := &claims.Items[i].ObjectMeta
		if resume.After = meta.Name; meta.Name > t.After && mayBeDue(q, meta) {
			names = append(names, meta.Name)
		}
	}
	for i := range adopted.Items {
		meta := &adopted.Items[i].ObjectMeta
		if meta.Name > t.After && (resume.Continue == "" || meta.Name <= resume.After) && mayBeDue(q, meta) {
			names = append(names, meta.Name)
		}
	}
	slices.Sort(names)
	if len(names) > limit {
		names = names[:limit]
		resume = token{Continue: t.Continue, After: names[limit-1]}
	} else if resume.Continue == "" {
		resume = token{}
	}
	var page providers.Page
	if resume != (token{}) {
		if page.Next, err = resume.encode(); err != nil {
			return page, err
		}
	}
	for _, name := range names {
		info, err := p.Get(ctx, name)
		if errors.Is(err, providers.ErrNotFound) {
			continue
		}
		if err != nil {
			return page, err
		}
		if q.Matches(info) {
			page.Sandboxes = append(page.Sandboxes, info)
		}
	}
	return page, nil
}

// mayBeDue reads the record of an object that stands for a sandbox. One that
// cannot be read is never due.
func mayBeDue(q providers.Query, meta *metav1.ObjectMeta) bool {
	r, err := decodeRecord(meta.Annotations[annotationRecord])
	q.States = nil
	return err == nil && q.Matches(r.Info(meta.Name))
}
