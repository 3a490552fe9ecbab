package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// List returns a page; a token is the name after which to go on.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	if err := p.begin(ctx, "list", ""); err != nil {
		return providers.Page{}, err
	}
	after := ""
	if q.Token != "" {
		var t token
		if err := json.Unmarshal([]byte(q.Token), &t); err != nil {
			return providers.Page{}, fmt.Errorf("list: %w", providers.ErrTokenInvalid)
		}
		after = t.After
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
		next, err := json.Marshal(token{After: found[limit-1].Name})
		if err != nil {
			return providers.Page{}, err
		}
		page.Next = string(next)
	}
	return page, nil
}

type token struct {
	After string `json:"after"`
}
