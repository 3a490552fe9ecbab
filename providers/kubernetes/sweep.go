package kubernetes

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

const (
	sweepInterval = 5 * time.Second
	sweepPage     = 500
)

// standing is how long a record has been seen without a change.
type standing struct {
	version string
	since   time.Time
}

// sweep finishes what a server that is gone had begun: it deletes what was half
// made or half deleted. One of the servers that share the namespace does so.
func (p *Provider) sweep(ctx context.Context) {
	seen := map[string]standing{}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		var err error
		if seen, err = p.sweepOnce(ctx, seen); err != nil && ctx.Err() == nil {
			p.Log.WarnContext(ctx, "half-made sandboxes could not be looked for", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *Provider) sweepOnce(ctx context.Context, before map[string]standing) (map[string]standing, error) {
	now := map[string]standing{}
	selector := labels.Set{managedBy: managedByValue, labelKind: kindSandbox}.String() +
		"," + labelPhase + " in (" + string(phaseCreating) + "," + string(phaseDeleting) + ")"
	opts := metav1.ListOptions{LabelSelector: selector, Limit: sweepPage, ResourceVersion: kube.FromCache}
	for {
		list, err := p.records().List(ctx, opts)
		if err != nil {
			return before, err
		}
		for i := range list.Items {
			cm := &list.Items[i]
			s := before[cm.Name]
			if s.version != cm.ResourceVersion {
				s = standing{version: cm.ResourceVersion, since: time.Now()}
			}
			now[cm.Name] = s
			if time.Since(s.since) < heartbeatStale {
				continue
			}
			rec, err := decodeRecord(cm)
			if err != nil {
				continue
			}
			done, err := p.takeOver(ctx, cm.Name, rec.Phase)
			if err != nil {
				p.Log.WarnContext(ctx, "a half-made sandbox could not be deleted", "name", cm.Name, "error", err)
			} else if done {
				p.Log.InfoContext(ctx, "deleted a sandbox that another server left "+string(rec.Phase), "name", cm.Name)
			}
		}
		opts.ResourceVersion = "" // a token has its own
		if opts.Continue = list.Continue; opts.Continue == "" {
			return now, nil
		}
	}
}
