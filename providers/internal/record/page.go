package record

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandgate/sandgate/providers"
)

// Page lists sandboxes by their names, which must be sorted. A token is the last name
// returned, so it never expires. get returns a sandbox, or ErrNotFound for one that went
// meanwhile or that the query excludes.
func (f Tokens) Page(ctx context.Context, q providers.Query, names []string, get func(name string) (providers.Info, error)) (providers.Page, error) {
	after, err := f.Decode(q.Token)
	if err != nil {
		return providers.Page{}, err
	}
	var page providers.Page
	for _, name := range names {
		if name <= after {
			continue
		}
		if ctx.Err() != nil {
			return providers.Page{}, fmt.Errorf("list: %w", context.Cause(ctx))
		}
		info, err := get(name)
		if errors.Is(err, providers.ErrNotFound) {
			continue
		}
		if err != nil {
			return providers.Page{}, err
		}
		if !q.Matches(info) {
			continue
		}
		if len(page.Sandboxes) == max(q.Limit, 1) {
			page.Next = f.Encode(page.Sandboxes[len(page.Sandboxes)-1].Name)
			break
		}
		page.Sandboxes = append(page.Sandboxes, info)
	}
	return page, nil
}
