package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/providers"
)

const (
	// stallTimeout is how long a registry may send nothing.
	stallTimeout = 30 * time.Second
	// maxCuts is how often in a row a connection may break without a byte.
	maxCuts = 5
	// firstWait is how long a pull waits after the first of them; doubled after each.
	firstWait = 200 * time.Millisecond
)

var errStalled = fmt.Errorf("the registry sent nothing for %v: %w", stallTimeout, context.DeadlineExceeded)

// blob reads a blob of a registry. It asks for the rest when the connection breaks.
// It checks no digest.
type blob struct {
	ctx    context.Context //nolint:containedctx // it lives for one pull
	repo   *repository
	digest string
	size   int64
	done   *atomic.Int64 // bytes of all layers, for the progress

	offset int64
	cuts   int
	body   io.ReadCloser
	stall  *time.Timer
	cancel context.CancelCauseFunc
}

// Read implements io.Reader. Its error wraps one of package providers.
func (b *blob) Read(p []byte) (int, error) {
	for b.offset < b.size {
		if b.body == nil {
			if err := b.open(); err != nil {
				if err := b.wait(err); err != nil {
					return 0, err
				}
				continue
			}
		}
		b.stall.Reset(stallTimeout)
		n, err := b.body.Read(p[:min(int64(len(p)), b.size-b.offset)])
		b.stall.Stop()
		b.offset += int64(n)
		b.done.Add(int64(n))
		if n > 0 {
			b.cuts = 0
			return n, nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			b.drop()
			if err := b.wait(err); err != nil {
				return 0, err
			}
		}
	}
	return 0, io.EOF
}

// open requests the blob from the offset on.
func (b *blob) open() error {
	ctx, cancel := context.WithCancelCause(b.ctx)
	stall := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	header := http.Header{}
	// Decompressed by the transport, it would have another digest.
	header.Set("Accept-Encoding", "identity")
	if b.offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", b.offset, b.size-1))
	}
	resp, err := b.repo.get(ctx, "blobs", b.digest, header)
	if err != nil {
		stall.Stop()
		cancel(err)
		return err
	}
	if b.offset > 0 && resp.Header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/%d", b.offset, b.size-1, b.size) {
		stall.Stop()
		err := errors.Join(errRange, resp.Body.Close())
		cancel(err)
		return err
	}
	b.body, b.stall, b.cancel = resp.Body, stall, cancel
	return nil
}

var errRange = fmt.Errorf("the registry cannot send the rest of a blob after the connection broke: %w", providers.ErrUnavailable)

// wait returns nil when it is worth trying again.
func (b *blob) wait(err error) error {
	b.cuts++
	if b.ctx.Err() == nil && isAway(err) && b.cuts <= maxCuts {
		select {
		case <-time.After(b.repo.wait << (b.cuts - 1)):
			return nil
		case <-b.ctx.Done():
		}
	}
	return pullError(b.ctx, b.repo.host, err)
}

func (b *blob) drop() {
	b.stall.Stop()
	_ = b.body.Close()
	b.cancel(io.EOF)
	b.body = nil
}

// Close implements io.Closer.
func (b *blob) Close() error {
	if b.body != nil {
		b.drop()
	}
	return nil
}
