package main

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandgate/sandgate/agent"
	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// mainExec is the exec id of the sandbox's own command.
const mainExec = "main"

// runMain starts the sandbox's own command detached, with the exec id "main": its output
// can be read and it can be signalled like any other command. It returns when the command
// has started.
func runMain(ctx context.Context, a *agent.Agent, argv []string) error {
	ours, theirs := net.Pipe()
	l := &single{conn: theirs, closed: make(chan struct{})}
	go func() { _ = a.Serve(l) }()
	dial := func(context.Context, string) (net.Conn, error) { return ours, nil }
	// The command is the operator's: nothing confines it.
	client, err := grpc.NewClient("passthrough:///agent", grpc.WithContextDialer(dial), protocol.Unconfined(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() {
		_ = client.Close()
		_ = l.Close()
	}()
	stream, err := agentv1.NewAgentServiceClient(client).Execute(ctx, &sandboxv1.ExecuteRequest{
		ExecId: mainExec, Detach: true,
		Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: argv}},
	})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil && ctx.Err() == nil { // a cancelled start is no failure
		return fmt.Errorf("start the sandbox's command %q: %w", argv[0], err)
	}
	return nil
}

// single is a listener with one connection.
type single struct {
	mu     sync.Mutex
	conn   net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *single) Accept() (net.Conn, error) {
	l.mu.Lock()
	conn := l.conn
	l.conn = nil
	l.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *single) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *single) Addr() net.Addr { return &net.UnixAddr{Name: "main", Net: "unix"} }
