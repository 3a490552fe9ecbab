package audit

import (
	"sync"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

// Objects are the files or sandboxes of one call that may have several.
// Goroutines of the call may add to it until the call ends.
type Objects struct {
	mu   sync.Mutex
	list []object
}

type object struct {
	path, sandboxID string
	// done is true once the object has its own outcome. An empty reason is
	// success.
	done   bool
	code   codes.Code
	reason string
}

// Describe adds the objects that a request names.
func (o *Objects) Describe(req any) {
	switch m := req.(type) {
	case *sandboxv1.UploadHeader:
		o.AddFile(m.GetPath())
	case *sandboxv1.DownloadRequest:
		for _, item := range m.GetItems() {
			o.AddFile(item.GetPath())
		}
	}
}

// AddFile adds a file and returns its number, from 1.
func (o *Objects) AddFile(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, object{path: Text(path, MaxText)})
	return len(o.list)
}

// AddSandbox adds a sandbox with its outcome.
func (o *Objects) AddSandbox(id string, f *fault.Error) {
	object := object{sandboxID: id, done: true}
	if f != nil {
		object.code, object.reason = fault.CodeAndName(f.Reason)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, object)
}

// FileEnded sets the outcome of file i, from 0.
func (o *Objects) FileEnded(i int, e *sandboxv1.FileError) {
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

// Deleted returns the sandboxes whose outcome is a success.
func (o *Objects) Deleted() []string {
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

// describe puts the object into a record.
func (o *object) describe(r *Record) {
	if o.path != "" {
		r.Path = o.path
	}
	if o.sandboxID != "" {
		r.SandboxID = o.sandboxID
	}
	if o.done && r.Phase != Started {
		r.Code, r.Reason = o.code.String(), o.reason
	}
}
