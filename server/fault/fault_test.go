package fault

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// Every reason has a row, and its code is the one that the API's reference
// gives, which is read from the comments of the definition.
func TestReasonsMatchTheReference(t *testing.T) {
	documented := documentedCodes(t)
	for n, name := range sandboxv1.ErrorReason_name {
		r, ok := reasons[sandboxv1.ErrorReason(n)]
		if n == 0 {
			if ok {
				t.Errorf("%s has a row", name)
			}
			continue
		}
		if !ok {
			t.Errorf("%s has no row", name)
			continue
		}
		doc := documented[name]
		if doc == "" {
			t.Errorf("%s: no code in its comment", name)
			continue
		}
		code, _, _ := strings.Cut(doc, " ")
		if got := canonical(r.code); got != code {
			t.Errorf("%s: code %s, documented %s", name, got, code)
		}
		if strings.Contains(doc, "with RetryInfo") != (r.retry > 0) {
			t.Errorf("%s: retry after %s, documented %q", name, r.retry, doc)
		}
	}
}

func canonical(c codes.Code) string {
	var names = map[codes.Code]string{
		codes.Canceled: "CANCELLED", codes.InvalidArgument: "INVALID_ARGUMENT", codes.NotFound: "NOT_FOUND",
		codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.AlreadyExists: "ALREADY_EXISTS",
		codes.PermissionDenied: "PERMISSION_DENIED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED",
		codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.OutOfRange: "OUT_OF_RANGE",
		codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
		codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
	}
	return names[c]
}

func documentedCodes(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../../proto/sandbox/v1/sandbox_errors.proto")
	if err != nil {
		t.Fatal(err)
	}
	docs := make(map[string]string)
	var comment []string
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "//"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(line, "//")))
		case strings.HasPrefix(line, "ERROR_REASON_") && len(comment) > 0:
			text := strings.Join(comment, " ")
			name, _, _ := strings.Cut(line, " ")
			docs[name] = strings.NewReplacer(".", " ", ";", " ", ",", " ").Replace(text)
			comment = nil
		default:
			comment = nil
		}
	}
	return docs
}

// Every sentinel of package providers has exactly one row. The list of
// sentinels is read from the source, so that a new one cannot be forgotten.
func TestEverySentinelHasOneRow(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../providers/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Err") {
			declared++
		}
		return true
	})
	if declared == 0 || declared != len(sentinels) {
		t.Fatalf("%d sentinels declared, %d mapped", declared, len(sentinels))
	}
	seen := make(map[error]bool)
	for _, s := range sentinels {
		if seen[s.err] {
			t.Errorf("%v is mapped twice", s.err)
		}
		seen[s.err] = true
		f := From(t.Context(), fmt.Errorf("create: %w", s.err))
		if f.Reason != s.reason {
			t.Errorf("%v: %s, want %s", s.err, f.Reason, s.reason)
		}
	}
}

func TestFrom(t *testing.T) {
	stopping, cancel := context.WithCancelCause(t.Context())
	cancel(ErrShuttingDown)
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want sandboxv1.ErrorReason
	}{
		"unknown":   {t.Context(), errors.New("the password is 1234"), sandboxv1.ErrorReason_ERROR_REASON_INTERNAL},
		"files":     {t.Context(), fmt.Errorf("list: %w", &os.PathError{Op: "open", Path: "/1234", Err: syscall.EMFILE}), sandboxv1.ErrorReason_ERROR_REASON_PROVIDER_UNAVAILABLE},
		"disk":      {t.Context(), fmt.Errorf("update: %w", &os.PathError{Op: "write", Path: "/1234", Err: syscall.ENOSPC}), sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED},
		"cancelled": {t.Context(), context.Canceled, sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED},
		"deadline":  {t.Context(), fmt.Errorf("x: %w", context.DeadlineExceeded), sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED},
		"shutdown":  {stopping, context.Canceled, sandboxv1.ErrorReason_ERROR_REASON_SERVER_SHUTTING_DOWN},
		"file":      {t.Context(), fs.ErrNotExist, sandboxv1.ErrorReason_ERROR_REASON_INTERNAL},
		"fault wins": {t.Context(), Replaced("a", "i").WithCause(providers.ErrNotFound),
			sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED},
	} {
		t.Run(name, func(t *testing.T) {
			f := From(c.ctx, c.err)
			if f.Reason != c.want {
				t.Fatalf("got %s, want %s", f.Reason, c.want)
			}
			st := f.Status("req-1")
			if strings.Contains(st.Message(), "1234") {
				t.Fatalf("the cause is shown: %s", st.Message())
			}
			if c.want == sandboxv1.ErrorReason_ERROR_REASON_INTERNAL {
				info, ok := st.Details()[0].(*errdetails.ErrorInfo)
				if !ok || info.GetMetadata()["request_id"] != "req-1" {
					t.Fatalf("details %v", st.Details())
				}
			}
		})
	}
}
