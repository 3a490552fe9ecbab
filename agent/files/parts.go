package files

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
)

// part is the received content of one resumable upload. While busy it belongs to the
// stream that claimed it, otherwise to parts.
type part struct {
	id, path string
	dir      *os.File // of the draft, if the upload is resumable
	draft    *draft   // nil before the first byte and after the end
	sum      *hasher
	size     int64
	digest   []byte // of the complete file
	complete bool

	busy   bool
	expire time.Time
	timer  *time.Timer
}

// parts keeps resumable uploads by their ids, in memory: they end with the agent.
type parts struct {
	max    int
	retain time.Duration

	mu     sync.Mutex
	byID   map[string]*part
	closed bool
}

func newParts(limit int, retain time.Duration) *parts {
	return &parts{max: limit, retain: retain, byID: make(map[string]*part)}
}

// claim assigns the upload to one stream, which must call release or forget.
func (p *parts) claim(id, path string, offset int64) (*part, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.byID[id]
	switch {
	case p.closed:
		return nil, fault.New(codes.Canceled, callCancelled, "the sandbox is shutting down", nil)
	case u == nil && offset != 0:
		return nil, uploadFault(uploadNotFound, id, "no such upload; start at offset 0", nil)
	case u == nil:
		return p.start(id, path)
	case u.busy:
		return nil, uploadFault(uploadBusy, id, "another stream writes to this upload", nil)
	case u.path != path:
		return nil, requestFault("upload_id", fmt.Sprintf("%q belongs to %q", id, u.path))
	case u.complete && offset == 0:
		// The file is complete and is sent again.
		p.remove(u)
		return p.start(id, path)
	case u.size != offset:
		return nil, offsetFault(id, u.size)
	}
	u.busy = true
	u.timer.Stop()
	return u, nil
}

func (p *parts) start(id, path string) (*part, error) {
	if len(p.byID) >= p.max && !p.evict() {
		return nil, fault.New(code(exhausted), exhausted,
			fmt.Sprintf("%d resumable uploads are running", p.max), nil).Retry(time.Second)
	}
	u := &part{id: id, path: path, sum: newHasher(), busy: true}
	p.byID[id] = u
	return u, nil
}

// evict removes the upload that was idle for longest.
func (p *parts) evict() bool {
	var oldest *part
	for _, u := range p.byID {
		if !u.busy && (oldest == nil || u.expire.Before(oldest.expire)) {
			oldest = u
		}
	}
	if oldest != nil {
		p.remove(oldest)
	}
	return oldest != nil
}

// release keeps the part for a retry. It removes an empty part.
func (p *parts) release(u *part) {
	u.sum.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	u.busy = false
	if p.closed || u.size == 0 && !u.complete {
		p.remove(u)
		return
	}
	u.expire = time.Now().Add(p.retain)
	u.timer = time.AfterFunc(p.retain, func() { p.expired(u) })
}

func (p *parts) expired(u *part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The timer may have fired just before a stream claimed the part.
	if !u.busy && p.byID[u.id] == u && !time.Now().Before(u.expire) {
		p.remove(u)
	}
}

// forget removes a claimed upload.
func (p *parts) forget(u *part) {
	u.sum.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(u)
}

// remove requires mu.
func (p *parts) remove(u *part) {
	if u.timer != nil {
		u.timer.Stop()
	}
	if p.byID[u.id] == u {
		delete(p.byID, u.id)
	}
	_ = u.clear()
}

// clear removes the draft. Callers ignore errors: a command may have removed it.
func (u *part) clear() error {
	var err error
	if u.draft != nil {
		err = u.draft.discard()
		u.draft = nil
	}
	if u.dir != nil {
		err = errors.Join(err, u.dir.Close())
		u.dir = nil
	}
	return err
}

// state describes an upload for GetUpload. It fails while a stream writes.
func (p *parts) state(id string) (path string, offset int64, complete bool, expire time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.byID[id]
	switch {
	case u == nil:
		return "", 0, false, time.Time{}, uploadFault(uploadNotFound, id, "no such upload", nil)
	case u.busy:
		return "", 0, false, time.Time{}, uploadFault(uploadBusy, id, "a stream writes to this upload", nil)
	}
	return u.path, u.size, u.complete, u.expire, nil
}

func (p *parts) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, u := range p.byID {
		if !u.busy {
			p.remove(u)
		}
	}
}

func offsetFault(id string, at int64) *fault.Error {
	return uploadFault(offsetMismatch, id, fmt.Sprintf("the upload goes on at offset %d", at),
		map[string]string{"offset": strconv.FormatInt(at, 10)})
}
