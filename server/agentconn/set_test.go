package agentconn

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/agent/protocol"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A connection that is dropped during its dial is cut, whichever comes first.
func TestDropDuringADialLeavesNoConnection(t *testing.T) {
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	machine := fake.NewMachine(dir, fake.Config{})
	t.Cleanup(func() {
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	key := Key{Tenant: "default", ID: "a", Name: "sg-a"}
	_, conn, err := machine.Open().Create(t.Context(), key.Name, providers.Spec{Tenant: key.Tenant, ID: key.ID})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	opened := make(chan struct{}, 10_000)
	set := New(Config{
		Provider: machine.Open(), Version: "1.2.3", ProtocolMinor: protocol.Minor, MaxRequest: 1 << 20,
		Hello: 20 * time.Second, Idle: time.Hour, OnDial: func(context.Context, error) { opened <- struct{}{} },
	})
	for range 300 {
		got := make(chan *Conn, 1)
		go func() {
			c, _ := set.Inspect(t.Context(), key, nil)
			got <- c
		}()
		<-opened
		set.Drop(key.Name)
		if c := <-got; c != nil {
			c.EndInspection() // of an attempt after the drop
		}
		set.Drop(key.Name)
		for len(opened) > 0 {
			<-opened
		}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); set.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("a dropped connection is open")
	}
}
