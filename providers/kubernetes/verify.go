package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
)

const (
	// verifiedLedger is the document in which servers share the last verification.
	verifiedLedger = "verified-network"
	// readVerified is how often a server reads it.
	readVerified = time.Minute
	// verifyAgain is when a verification is repeated that did not find the policy
	// enforced, and verifyFresh how old one may be when a server begins to lead.
	verifyAgain = time.Hour
	verifyFresh = 10 * time.Minute
)

// verdict is what a verification found out about the cluster's network.
type verdict string

const (
	verdictUnknown  verdict = "unknown"
	verdictEnforced verdict = "enforced"
	verdictOpen     verdict = "open"
)

// verification is the result of the last attempt to connect through the policy of
// sandboxes without network. The zero value is that there was none.
type verification struct {
	Verdict verdict `json:"verdict,omitempty"`
	// Reason describes why the verdict is unknown.
	Reason string    `json:"reason,omitempty"`
	Time   time.Time `json:"time"`
}

// due returns when to verify again.
func (v verification) due(interval time.Duration) time.Time {
	if v.Verdict == verdictEnforced {
		return v.Time.Add(interval)
	}
	return v.Time.Add(min(interval, verifyAgain))
}

// current returns what the verification is worth at a time. It says nothing about a
// network that has been verified no more for long.
func (v verification) current(now time.Time, interval time.Duration) verification {
	switch {
	case interval <= 0:
		return verification{Verdict: verdictUnknown, Reason: "this server does not verify it"}
	case v.Verdict == "":
		return verification{Verdict: verdictUnknown, Reason: "the verification has not ended yet"}
	case now.After(v.due(interval).Add(2 * max(interval, verifyAgain))):
		return verification{Verdict: verdictUnknown, Reason: "it was last verified at " + stamp(v.Time)}
	}
	return v
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// networkEnforcement reports whether the cluster's network enforces the policies. What was
// seen counts more than what the operator states.
func (c *Config) networkEnforcement(v verification) providers.Enforcement {
	e := providers.Enforcement{Name: protectionNetwork, Enforced: c.NetworkPolicies, Detail: "for none and proxy a NetworkPolicy that denies everything"}
	switch {
	case v.Verdict == verdictEnforced:
		e.Enforced = true
		e.Detail += "; it kept a pod from another one at " + stamp(v.Time)
	case v.Verdict == verdictOpen:
		e.Enforced = false
		e.Detail += " is made, but the cluster's network does not enforce it: a pod that it selects connected to another one at " + stamp(v.Time)
		if c.NetworkPolicies {
			e.Detail += ", although --kubernetes-network-policies states that it does"
		}
	case c.NetworkPolicies:
		e.Detail += "; the operator states that the cluster's network enforces it, which is not verified: " + v.Reason
	default:
		e.Detail += " is made, but whether the cluster's network enforces it is not known: " + v.Reason +
			"; state it with --kubernetes-network-policies where it does"
	}
	return e
}

// lastVerification holds what this server knows.
type lastVerification struct {
	mu   sync.Mutex
	last verification
}

func (l *lastVerification) get() verification {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// set returns the former verification. An older one changes nothing.
func (l *lastVerification) set(v verification) (before verification, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.last
	if changed = v.Time.After(before.Time); changed {
		l.last = v
	}
	return before, changed
}

// network returns whether the policies are enforced, as far as this server knows.
func (p *Provider) network() providers.Enforcement {
	v := p.verified.get().current(time.Now(), p.config.VerifyNetwork)
	return p.config.networkEnforcement(v)
}

// note takes over a verification, and logs one that differs from the last.
func (p *Provider) note(ctx context.Context, v verification) {
	before, changed := p.verified.set(v)
	if !changed || before.Verdict == v.Verdict {
		return
	}
	e := p.network()
	level := slog.LevelWarn
	if e.Enforced {
		level = slog.LevelInfo
	}
	p.Log.Log(ctx, level, "the network policy of sandboxes was verified", "enforced", e.Enforced, "reason", e.Detail)
}

// recallVerification takes over the last verification by any server.
func (p *Provider) recallVerification(ctx context.Context) {
	err := p.ChangeLedger(ctx, verifiedLedger, func(document []byte) ([]byte, error) {
		if v := (verification{}); document != nil && json.Unmarshal(document, &v) == nil {
			p.note(ctx, v)
		}
		return nil, nil
	})
	if err != nil && ctx.Err() == nil {
		p.Log.WarnContext(ctx, "the last verification of the network policy could not be read", "error", err)
	}
}

// writeVerification shares a verification.
func (p *Provider) writeVerification(ctx context.Context, v verification) error {
	document, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.ChangeLedger(ctx, verifiedLedger, func([]byte) ([]byte, error) { return document, nil })
}

// followVerifications reads what the leading server has found out, until ctx ends.
func (p *Provider) followVerifications(ctx context.Context) {
	tick := time.NewTicker(readVerified)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.recallVerification(ctx)
	}
}

// keepVerified verifies the network again and again until ctx ends. One of the servers
// that share the namespace does so.
func (p *Provider) keepVerified(ctx context.Context) {
	p.removeVerifiers(ctx) // a server that is gone may have left them
	p.recallVerification(ctx)
	due := p.verified.get().Time.Add(min(verifyFresh, p.config.VerifyNetwork))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		v := p.verifyNetwork(ctx)
		if ctx.Err() != nil {
			return
		}
		p.note(ctx, v)
		if err := p.writeVerification(ctx, v); err != nil && ctx.Err() == nil {
			p.Log.WarnContext(ctx, "a verification of the network policy could not be shared", "error", err)
		}
		due = v.due(p.config.VerifyNetwork)
	}
}

// unknown is the verification that found nothing out.
func unknown(format string, args ...any) verification {
	return verification{Verdict: verdictUnknown, Reason: fmt.Sprintf(format, args...), Time: time.Now()}
}
