package network

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Every error of the connection has a reason: the server takes an error without one for
// a breach of the protocol.
func TestEveryConnectionErrorHasAReason(t *testing.T) {
	for errno, text := range map[unix.Errno]string{
		unix.ECONNRESET:   "reset the connection",
		unix.EPIPE:        "reset the connection",
		unix.ECONNABORTED: "software caused connection abort",
		unix.ETIMEDOUT:    "connection timed out",
		unix.ENOBUFS:      "no buffer space available",
	} {
		broken := &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", errno)}
		for name, ends := range map[string][2]error{
			"write": {broken, nil}, "read": {nil, errno}, "both": {broken, errno},
		} {
			r := &relay{s: New(Config{}), stream: silent{t: t}, port: 80}
			in, out := make(chan error, 1), make(chan error, 1)
			in <- ends[0]
			out <- ends[1]
			var f *fault.Error
			if err := r.wait(in, out); !errors.As(err, &f) ||
				f.Reason() != sandboxv1.ErrorReason_ERROR_REASON_CONNECTION_RESET || !strings.Contains(f.Message(), text) {
				t.Errorf("%s, %v: %v", name, errno, err)
			}
		}
	}
}

// silent is a stream whose caller stays.
type silent struct {
	grpc.ServerStream
	t *testing.T
}

func (s silent) Context() context.Context { return s.t.Context() }
