package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/server/audit"
)

// refusal is how a call of a tenant was refused. The tenant is empty for one without valid
// credentials.
type refusal struct{ reason, tenant, operation string }

// matrixRecords compares the audit log with the calls that were refused.
type matrixRecords struct {
	mu       sync.Mutex
	outcomes map[refusal]bool
	// found and wanted count the refused calls in the log and those that were made, by
	// reason and operation.
	found, wanted map[string]int
}

func newMatrixRecords() *matrixRecords {
	return &matrixRecords{outcomes: make(map[refusal]bool), found: make(map[string]int), wanted: make(map[string]int)}
}

// Audit implements audit.Sink.
func (r *matrixRecords) Audit(_ context.Context, record audit.Record) error {
	if record.Phase == audit.Started {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes[refusal{record.Reason, record.Tenant, record.Operation}] = true
	r.found[record.Reason+" "+record.Operation]++
	return nil
}

// want waits for a record, which may be written after the caller has its answer.
func (r *matrixRecords) want(t *testing.T, o refusal) {
	t.Helper()
	r.await(t, fmt.Sprintf("a record of %+v", o), func() bool { return r.outcomes[o] })
}

func (r *matrixRecords) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		ok := is()
		r.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%s: not there", what)
		}
	}
}

// refused notes a call of which there must be a record.
func (r *matrixRecords) refused(m method, reason string) {
	if operation, ok := strings.CutPrefix(m.full, "/sandbox.v1.SandboxService/"); ok && m.desc != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wanted[reason+" "+operation]++
	}
}

// complete checks that each refused call has a record. The log leaves out some with
// invalid credentials, since their rate is bounded, and counts them.
func (r *matrixRecords) complete(t *testing.T, srv *Server) {
	t.Helper()
	missing := 0
	defer func() { t.Logf("%d records are missing", missing) }()
	if len(r.wanted) < 20 {
		t.Errorf("only %d kinds of calls were refused", len(r.wanted))
	}
	r.await(t, "a record of each refused call", func() bool {
		missing = 0
		for call, n := range r.wanted {
			missing += max(n-r.found[call], 0)
		}
		return missing <= int(testutil.ToFloat64(srv.metrics.Suppressed))
	})
}

// wantRefused checks the answer to a call without valid credentials.
func (r *matrixRecords) wantRefused(t *testing.T, m method, err error) {
	t.Helper()
	if m.health {
		if err != nil {
			t.Errorf("%s: health needs no credentials: %v", m.full, err)
		}
		return
	}
	r.refused(m, "CREDENTIALS_INVALID")
	if code := status.Code(err); code != codes.Unauthenticated {
		t.Errorf("%s: got %v", m.full, err)
		return
	}
	if _, got := reason(t, err); got != "CREDENTIALS_INVALID" {
		t.Errorf("%s: %s", m.full, got)
	}
}

// wantForbidden checks the answer to a call that the caller may not make.
func (r *matrixRecords) wantForbidden(t *testing.T, m method, got string, err error) {
	t.Helper()
	r.refused(m, "CALL_FORBIDDEN")
	if strings.Contains(got, marker) || strings.Contains(fmt.Sprint(err), marker) {
		t.Errorf("%s: the victim is in %q, %v", m.full, got, err)
	}
	if code, why := reason(t, err); code != codes.PermissionDenied || why != "CALL_FORBIDDEN" {
		t.Errorf("%s: got %v", m.full, err)
	}
}
