package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/wire"
)

// shortList is a provider that lists one page and then fails.
type shortList struct{ *scriptedProvider }

func (l shortList) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	if q.Token != "" {
		return providers.Page{}, errors.New("the list broke off")
	}
	page, err := l.scriptedProvider.List(ctx, q)
	page.Next = "more"
	return page, err
}

// What a call has done before it fails is recorded and logged as done.
func TestAuditOfObjectsOfACallThatFails(t *testing.T) {
	for _, many := range []int{1, 2} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			log := &lines{}
			h, audit := audited(t, func(c *Config) {
				c.Provider = shortList{c.Provider.(*scriptedProvider)}
				c.Logger = slog.New(slog.NewTextHandler(log, nil))
			})
			for i := range many {
				h.create(fmt.Sprintf("s-%d", i))
			}
			_, err := h.client.CleanupSandboxes(withRequestID(t.Context(), "clean"),
				&sandboxv1.CleanupSandboxesRequest{MaxIdle: wire.Duration(time.Nanosecond)})
			wantReason(t, err, "INTERNAL")
			got := audit.await(t, "clean", 2+many)
			if call := got[1]; call["code"] != "Internal" || call["sandbox_id"] != nil {
				t.Errorf("the call: %v", call)
			}
			for _, r := range got[2:] {
				if r["code"] != "OK" || r["reason"] != nil || r["sandbox_id"] == nil || r["object"] == nil {
					t.Errorf("an object: %v", r)
				}
			}
			h.until("the deletions are logged", func() bool {
				return strings.Count(log.String(), "sandbox deleted") == many
			})
		})
	}
}
