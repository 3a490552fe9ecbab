package audit

import (
	"context"
	"log/slog"
	"sync/atomic"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/server/fault"
)

// Recorder writes a server's records to its sink.
type Recorder struct {
	Sink Sink
	// Required makes Require reject calls whose record could not be written.
	Required bool
	// CommandText adds the text of commands to records, up to 8 KiB of each.
	CommandText bool
	Log         *slog.Logger
	// OnFailure is called for each record that could not be written.
	OnFailure func()

	// lost counts the records that failed in a row.
	lost atomic.Int64
}

// Record writes a record. It reports failures to OnFailure, and logs the first and
// the last of several in a row.
func (w *Recorder) Record(ctx context.Context, r Record) error {
	err := w.Sink.Audit(ctx, r)
	switch {
	case err != nil:
		if w.lost.Add(1) == 1 {
			w.Log.ErrorContext(ctx, "the audit log cannot be written", "error", err)
		}
		w.OnFailure()
	case w.lost.Load() > 0:
		if lost := w.lost.Swap(0); lost > 0 {
			w.Log.WarnContext(ctx, "the audit log can be written again", "lost_records", lost)
		}
	}
	return err
}

// RecordAll writes one record for the call. It adds one for each object if
// there are several, or if the call failed after its only object had an
// outcome. An object without an outcome has the call's.
func (w *Recorder) RecordAll(ctx context.Context, r Record, o *Objects) error {
	o.mu.Lock()
	list := o.list[:len(o.list):len(o.list)]
	defer o.mu.Unlock()
	if len(list) == 0 {
		return w.Record(ctx, r)
	}
	if len(list) == 1 && (r.Code == "" || r.Code == codes.OK.String() || !list[0].done) {
		list[0].describe(&r)
		return w.Record(ctx, r)
	}
	r.Path, r.Objects = "", len(list)
	err := w.Record(ctx, r)
	for i := range list {
		one := r
		one.Objects, one.Object, one.Bytes = 0, i+1, 0
		list[i].describe(&one)
		if failed := w.Record(ctx, one); err == nil {
			err = failed
		}
	}
	return err
}

// Require returns the error of a call whose record could not be written, and nil if
// records are not required.
func (w *Recorder) Require(err error) error {
	if err == nil || !w.Required {
		return nil
	}
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_INTERNAL,
		"the server cannot write its audit log and refuses calls until it can").WithCause(err)
}
