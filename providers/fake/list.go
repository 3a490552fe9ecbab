package fake

import (
	"context"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/record"
)

const tokens record.Tokens = "fake1"

// List returns a page; a token is the name after which to go on.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	if err := p.begin(ctx, "list", ""); err != nil {
		return providers.Page{}, err
	}
	after, err := tokens.Decode(q.Token)
	if err != nil {
		return providers.Page{}, err
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	var found []providers.Info
	for name, s := range p.m.sandboxes {
		if name > after && q.Matches(s.info) {
			found = append(found, copyInfo(s.info))
		}
	}
	slices.SortFunc(found, func(a, b providers.Info) int { return strings.Compare(a.Name, b.Name) })
	page := providers.Page{Sandboxes: found}
	if limit := max(q.Limit, 1); len(found) > limit {
		page.Sandboxes = found[:limit]
		page.Next = tokens.Encode(found[limit-1].Name)
	}
	return page, nil
}

// ChangeLedger implements providers.Ledger.
func (p *Provider) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	if err := p.begin(ctx, "ledger", name); err != nil {
		return err
	}
	p.m.ledgerMu.Lock()
	defer p.m.ledgerMu.Unlock()
	now, err := change(p.m.ledgers[name])
	if err == nil && now != nil {
		p.m.ledgers[name] = now
	}
	return err
}
