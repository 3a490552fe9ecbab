package kubernetes

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

// Of several servers that keep the same pool one leads it, so that it is not
// filled twice. The leader is written in the pool's record, which also owns the
// unclaimed pods; a leader that has stopped renewing is replaced.
const (
	leaderKey = "leader"
	termKey   = "term"

	leadRenew = 4 * time.Second
)

// leaders is what this server knows of who leads.
type leaders struct {
	mu   sync.Mutex
	seen map[string]standing
	lead map[string]time.Time // when this server last renewed
	id   string
}

// lead returns the pool's record, and whether this server leads the pool.
func (p *Provider) lead(ctx context.Context, one *pool) (*corev1.ConfigMap, bool, error) {
	l := &p.pools.leader
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen, l.lead, l.id = map[string]standing{}, map[string]time.Time{}, random()+random()
	}
	name := "sgpool-" + one.key
	cm, err := p.records().Get(ctx, name, getOptions)
	if apierrors.IsNotFound(err) {
		cm, err = p.records().Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				managedBy: managedByValue, labelKind: kindPool, labelPool: one.key,
			}},
			Data: map[string]string{leaderKey: l.id, "template": one.template, termKey: "1"},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil, false, nil
		}
		l.lead[one.key] = time.Now()
	}
	if err != nil {
		return nil, false, kube.Wrap(ctx, "the pool's record", err)
	}
	mine := cm.Data[leaderKey] == l.id
	if mine && time.Since(l.lead[one.key]) < leadRenew {
		return cm, true, nil
	}
	if !mine && cm.Data[leaderKey] != "" {
		s := l.seen[one.key]
		if s.version != cm.ResourceVersion {
			s = standing{version: cm.ResourceVersion, since: time.Now()}
			l.seen[one.key] = s
		}
		if time.Since(s.since) < heartbeatStale {
			return nil, false, nil
		}
	}
	term, _ := strconv.ParseUint(cm.Data[termKey], 10, 64)
	cm.Data[leaderKey], cm.Data[termKey] = l.id, strconv.FormatUint(term+1, 10)
	cm, err = p.records().Update(ctx, cm, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, kube.Wrap(ctx, "lead the pool", err)
	}
	l.lead[one.key] = time.Now()
	return cm, true, nil
}

// resign lets another server lead at once.
func (p *Provider) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	l := &p.pools.leader
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.lead {
		cm, err := p.records().Get(ctx, "sgpool-"+key, getOptions)
		if err != nil || cm.Data[leaderKey] != l.id {
			continue
		}
		cm.Data[leaderKey] = ""
		if _, err := p.records().Update(ctx, cm, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			p.log.DebugContext(ctx, "leading a pool could not be given up", "error", err)
		}
	}
}
