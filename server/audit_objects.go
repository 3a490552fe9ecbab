package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// auditObjects are the files or sandboxes of one call that may have several.
// Goroutines of the call may add to it until the call ends.
type auditObjects struct {
	mu   sync.Mutex
	list []auditObject
}

type auditObject struct {
	path, sandboxID string
	// done is true once the object has its own outcome. An empty reason is
	// success.
	done   bool
	code   codes.Code
	reason string
}

// describe adds the objects that a request names.
func (o *auditObjects) describe(req any) {
	switch m := req.(type) {
	case *sandboxv1.UploadHeader:
		o.addFile(m.GetPath())
	case *sandboxv1.DownloadRequest:
		for _, item := range m.GetItems() {
			o.addFile(item.GetPath())
		}
	}
}

// addFile adds a file and returns its number, from 1.
func (o *auditObjects) addFile(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, auditObject{path: auditText(path, maxAuditText)})
	return len(o.list)
}

// addSandbox adds a sandbox with its outcome.
func (o *auditObjects) addSandbox(id string, f *fault.Error) {
	object := auditObject{sandboxID: id, done: true}
	if f != nil {
		object.code, object.reason = fault.CodeAndName(f.Reason)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, object)
}

// fileEnded sets the outcome of file i, from 0.
func (o *auditObjects) fileEnded(i int, e *sandboxv1.FileError) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i < 0 || i >= len(o.list) {
		return
	}
	o.list[i].done = true
	if e != nil {
		o.list[i].code, o.list[i].reason = fault.CodeAndName(e.GetReason())
	}
}

// deleted returns the sandboxes whose outcome is a success.
func (o *auditObjects) deleted() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ids []string
	for _, object := range o.list {
		if object.sandboxID != "" && object.done && object.reason == "" {
			ids = append(ids, object.sandboxID)
		}
	}
	return ids
}

// recordAll writes one record for the call. It adds one for each object if
// there are several, or if the call failed after its only object had an
// outcome. An object without an outcome has the call's.
func (s *Server) recordAll(ctx context.Context, r AuditRecord, o *auditObjects) error {
	o.mu.Lock()
	list := o.list[:len(o.list):len(o.list)]
	defer o.mu.Unlock()
	if len(list) == 0 {
		return s.record(ctx, r)
	}
	if len(list) == 1 && (r.Code == "" || r.Code == codes.OK.String() || !list[0].done) {
		list[0].describe(&r)
		return s.record(ctx, r)
	}
	r.Path, r.Objects = "", len(list)
	err := s.record(ctx, r)
	for i := range list {
		one := r
		one.Objects, one.Object, one.Bytes = 0, i+1, 0
		list[i].describe(&one)
		if failed := s.record(ctx, one); err == nil {
			err = failed
		}
	}
	return err
}

// describe puts the object into a record.
func (o *auditObject) describe(r *AuditRecord) {
	if o.path != "" {
		r.Path = o.path
	}
	if o.sandboxID != "" {
		r.SandboxID = o.sandboxID
	}
	if o.done && r.Phase != AuditStarted {
		r.Code, r.Reason = o.code.String(), o.reason
	}
}

// beginFile writes the start record of a further file.
func (s *Server) beginFile(ctx context.Context, c *call, path string) error {
	r := c.audit
	r.Phase, r.Path, r.Object = AuditStarted, auditText(path, maxAuditText), c.objects.addFile(path)
	return s.requireAudit(s.record(ctx, r))
}

// recordExpired records a sandbox that the reaper deleted. A sandbox that a caller
// cleans up has that caller's records.
func (s *Server) recordExpired(ctx context.Context, info providers.Info) {
	if _, ok := ctx.Value(callKey{}).(*call); ok {
		return
	}
	// The sandbox is gone either way.
	_ = s.record(ctx, AuditRecord{
		Time: time.Now(), Phase: AuditEnded, Principal: "sandgate", Tenant: info.Spec.Tenant,
		Operation: "Expire", SandboxID: info.Spec.ID, Code: codes.OK.String(),
	})
}
