package main

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"sync"
)

// mostOfMessages announces 16 MiB in each of many calls with a valid token, sends 12 MiB,
// and leaves the rest out. It calls again when the server ends a call.
func mostOfMessages(ctx context.Context, h *host, begun func()) error {
	const conns, streams = 10, 50
	var work, sent sync.WaitGroup
	for range conns {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		for range streams {
			sent.Add(1)
			first := sync.OnceFunc(sent.Done)
			work.Go(func() {
				defer first()
				for ctx.Err() == nil {
					body := &endless{left: 12 << 20, head: binary.BigEndian.AppendUint32([]byte{0}, 16<<20), ctx: ctx, sent: first}
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.server.Address+"/sandbox.v1.SandboxService/WriteFile", body)
					if err != nil {
						return
					}
					req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Authorization": {"Bearer " + h.tokens["a"]}}
					if resp, err := transport.RoundTrip(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
					first()
				}
			})
		}
	}
	sent.Wait()
	begun()
	work.Wait()
	return ctx.Err()
}

// endless is a body that stops before its end.
type endless struct {
	head []byte
	left int
	sent func()
	ctx  context.Context //nolint:containedctx // a reader has no other way to end
}

func (e *endless) Read(p []byte) (int, error) {
	if n := copy(p, e.head); n > 0 {
		e.head = e.head[n:]
		return n, nil
	}
	if n := min(len(p), e.left); n > 0 {
		clear(p[:n])
		e.left -= n
		return n, nil
	}
	e.sent()
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}
