package server

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// sharedSubstrate is a provider that several servers share, with one sandbox of another
// server.
type sharedSubstrate struct {
	providers.Provider
	self    string
	dialled chan string
}

const sharedName = "sg-shared"

func (p *sharedSubstrate) Describe(ctx context.Context) (providers.Description, error) {
	d, err := p.Provider.Describe(ctx)
	d.Capabilities = append(d.Capabilities, providers.CapabilityNetworkProxy)
	return d, err
}

func (p *sharedSubstrate) Join(ctx context.Context, changed func(self string, live []string)) {
	changed(p.self, []string{"other"})
	changed(p.self, []string{p.self})
	<-ctx.Done()
}

func (p *sharedSubstrate) info() providers.Info {
	return providers.Info{Name: sharedName, State: providers.StateActive, Incarnation: "first",
		Spec: providers.Spec{ID: "shared", Tenant: "default", Template: "default", Network: providers.NetworkProxy}}
}

func (p *sharedSubstrate) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	if q.Network == providers.NetworkProxy {
		return providers.Page{Sandboxes: []providers.Info{p.info()}}, nil
	}
	return p.Provider.List(ctx, q)
}

func (p *sharedSubstrate) Get(ctx context.Context, name string) (providers.Info, error) {
	if name == sharedName {
		return p.info(), nil
	}
	return p.Provider.Get(ctx, name)
}

func (p *sharedSubstrate) Dial(ctx context.Context, name string) (net.Conn, error) {
	if name != sharedName {
		return p.Provider.Dial(ctx, name)
	}
	select {
	case p.dialled <- name:
	default:
	}
	return nil, fmt.Errorf("the test has no agent: %w", providers.ErrUnavailable)
}

// A server carries the sandboxes that fall to it, whichever server has created them.
func TestServerCarriesNetworksThatFallToIt(t *testing.T) {
	p := &sharedSubstrate{self: "this", dialled: make(chan string, 1)}
	newHarness(t, func(c *Config) {
		p.Provider, c.Provider = c.Provider, p
	})
	select {
	case <-p.dialled:
	case <-time.After(time.Minute):
		t.Error("it does not")
	}
}
