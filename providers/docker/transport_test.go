package docker

import (
	"errors"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

// A daemon on another machine cannot mount the directory of the agent's socket: the
// transport is then exec, unless the operator wants sockets.
func TestTransportIsExecWhereTheDaemonHasNoneOfOurFiles(t *testing.T) {
	can := canDialSockets
	t.Cleanup(func() { canDialSockets = can })
	canDialSockets = true
	config := fakeConfig(t, &fakeDaemon{apart: true})
	spec := providers.Spec{Tenant: "default", ID: "a", Hash: "one", Template: "default", Network: providers.NetworkNone}
	p := open(t, config)
	info, err := providertest.Create(t.Context(), p, "sg-a", spec)
	if err != nil || info.Transport != "exec" {
		t.Errorf("by default: %+v, %v", info, err)
	}
	if again, err := p.Get(t.Context(), "sg-a"); err != nil || again.Transport != "exec" {
		t.Errorf("afterwards: %+v, %v", again, err)
	}
	if err := errors.Join(p.Delete(t.Context(), "sg-a", providers.Condition{}), p.Close()); err != nil {
		t.Error(err)
	}
	config.Transport = TransportSocket
	p = open(t, config)
	closeLater(t, p)
	if info, err := providertest.Create(t.Context(), p, "sg-a", spec); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("with sockets only: %+v, %v", info, err)
	}
}
