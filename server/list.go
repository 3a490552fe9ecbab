package server

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/wire"
)

const (
	defaultPage = 100
	maxPage     = 1000
)

// ListSandboxes implements SandboxService.
func (s *Server) ListSandboxes(ctx context.Context, req *sandboxv1.ListSandboxesRequest) (*sandboxv1.ListSandboxesResponse, error) {
	q := providers.Query{Tenant: call.Of(ctx).Principal.Tenant, Labels: req.GetLabels(), Limit: defaultPage}
	var v policy.Violations
	v.Labels("labels", req.GetLabels())
	v.NotNegative("page_size", int64(req.GetPageSize()))
	for i, asked := range req.GetStates() {
		state, ok := wire.StateFrom(asked)
		if !ok {
			v.Add(fmt.Sprintf("states[%d]", i), "%d is not a known state", asked)
		}
		q.States = append(q.States, state)
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	if n := int(req.GetPageSize()); n > 0 {
		q.Limit = min(n, maxPage)
	}
	filter := filterHash(q)
	var err error
	if q.Token, err = openToken(req.GetPageToken(), filter); err != nil {
		return nil, err
	}
	page, err := s.provider.List(ctx, q)
	if err != nil {
		return nil, err
	}
	resp := &sandboxv1.ListSandboxesResponse{NextPageToken: sealToken(page.Next, filter)}
	for _, info := range page.Sandboxes {
		if !strings.HasPrefix(info.Spec.ID, call.Of(ctx).Principal.Scope.IDPrefix) {
			continue
		}
		resp.Sandboxes = append(resp.Sandboxes, s.sandbox(info))
	}
	return resp, nil
}

// pageToken is a provider's token, bound to the filters of its listing.
type pageToken struct {
	Token  string `json:"t"`
	Filter string `json:"f"`
}

func filterHash(q providers.Query) string {
	states := slices.Clone(q.States)
	slices.Sort(states)
	h := sha256.New()
	fmt.Fprintf(h, "%q %v", q.Tenant, states)
	for _, k := range slices.Sorted(maps.Keys(q.Labels)) {
		fmt.Fprintf(h, " %q=%q", k, q.Labels[k])
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}

func sealToken(token, filter string) string {
	if token == "" {
		return ""
	}
	raw, err := json.Marshal(pageToken{Token: token, Filter: filter})
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func openToken(sealed, filter string) (string, error) {
	if sealed == "" {
		return "", nil
	}
	var p pageToken
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil || p.Token == "" || p.Filter != filter {
		return "", fault.New(sandboxv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID,
			"the page token is malformed or belongs to other filters").WithCause(err)
	}
	return p.Token, nil
}
