package egress

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// running are the requests of a connection that have not ended: an upgraded one, or one
// whose response streams, may run for as long as the connection. The zero value has none.
type running struct {
	mu       sync.Mutex
	requests map[*admitted]struct{}
}

// admitted is a request and the policy under which it began.
type admitted struct {
	request *http.Request // a copy of what a Policy looks at
	policy  *Policy
}

// begin returns the policy for a request, which counts as running until end. A policy
// that is stored later finds it in check.
func (s *running) begin(policy *atomic.Pointer[Policy], r *http.Request) (now *Policy, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &admitted{request: &http.Request{Method: r.Method, URL: r.URL, Header: r.Header.Clone()}, policy: policy.Load()}
	if s.requests == nil {
		s.requests = make(map[*admitted]struct{})
	}
	s.requests[a] = struct{}{}
	return a.policy, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.requests, a)
	}
}

// check returns a *Denied if the policy, which has been stored, does not allow one of
// the requests, or does not give it a secret that it has.
func (s *running) check(policy *Policy, target Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.requests {
		if a.policy.checkRequest(target, a.request) != nil {
			continue // It is about to be refused.
		}
		if denied := policy.checkRequest(target, a.request); denied != nil {
			return denied
		}
		now := policy.secrets(target, a.request)
		for _, secret := range a.policy.secrets(target, a.request) {
			if !slices.Contains(now, secret) {
				return target.denied(ReasonRequest, "the rules do not give the request the secret %s any more", secret.Name)
			}
		}
	}
	return nil
}
