package preview

import (
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// failure is an error as a caller of the preview gets it.
type failure struct {
	status int
	// reason is the name of a sandbox.v1.ErrorReason.
	reason  string
	message string
	// state is the sandbox's, of SANDBOX_NOT_ACTIVE.
	state string
	// retry is when to try again, or 0.
	retry time.Duration
}

// statuses has the status of each reason that a request can end with. Others are 500.
var statuses = map[string]int{
	"SANDBOX_NOT_FOUND": http.StatusGone, "SANDBOX_EXPIRED": http.StatusGone, "SANDBOX_REPLACED": http.StatusGone,
	"PORT_CLOSED": http.StatusBadGateway, "CONNECTION_RESET": http.StatusBadGateway,
	"AGENT_MISBEHAVED": http.StatusBadGateway, "AGENT_VERSION_UNSUPPORTED": http.StatusBadGateway,
	"SANDBOX_NOT_ACTIVE": http.StatusServiceUnavailable, "SANDBOX_START_FAILED": http.StatusServiceUnavailable,
	"AGENT_CANNOT_START": http.StatusServiceUnavailable, "AGENT_UNAVAILABLE": http.StatusServiceUnavailable,
	"PROVIDER_UNAVAILABLE": http.StatusServiceUnavailable, "SERVER_SHUTTING_DOWN": http.StatusServiceUnavailable,
	"SANDBOX_START_TIMEOUT": http.StatusGatewayTimeout, "CALL_DEADLINE_EXCEEDED": http.StatusGatewayTimeout,
	"TOO_MANY_CONNECTIONS": http.StatusServiceUnavailable, "SANDBOX_RESOURCES_EXHAUSTED": http.StatusServiceUnavailable,
	"QUOTA_EXCEEDED": http.StatusTooManyRequests, "FEATURE_UNSUPPORTED": http.StatusNotImplemented,
	"CALL_CANCELLED": 499, // nobody reads it but the metrics

	"REQUEST_INVALID": http.StatusBadRequest, "PATH_INVALID": http.StatusBadRequest,
	"FILE_NOT_FOUND": http.StatusNotFound, "FILE_PERMISSION_DENIED": http.StatusForbidden,
	"POLICY_DENIED": http.StatusForbidden, "CALL_FORBIDDEN": http.StatusForbidden,
	"FILE_IS_DIRECTORY": http.StatusConflict, "FILE_NOT_DIRECTORY": http.StatusConflict, "FILE_NOT_REGULAR": http.StatusConflict,
	"FILE_READ_ONLY": http.StatusConflict, "FILE_ALREADY_EXISTS": http.StatusConflict,
	"FILE_TOO_LARGE": http.StatusRequestEntityTooLarge, "DISK_FULL": http.StatusInsufficientStorage,
}

// portRetry is when to try again to connect to a port that nothing listens on yet.
const portRetry = 2 * time.Second

// failed returns the failure of a call's error.
func failed(err error) *failure {
	switch {
	case errors.Is(err, errReplaced):
		return &failure{status: http.StatusGone, reason: "SANDBOX_REPLACED", message: gone}
	case errors.Is(err, errExpired):
		return &failure{status: http.StatusUnauthorized, reason: "CREDENTIALS_INVALID", message: "the URL has expired; create another"}
	}
	f := &failure{status: http.StatusInternalServerError, reason: "INTERNAL", message: "internal error"}
	st, ok := status.FromError(err)
	if !ok {
		return f
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			f.reason, f.message, f.state = d.GetReason(), st.Message(), d.GetMetadata()["state"]
			if known, ok := statuses[f.reason]; ok {
				f.status = known
			}
		case *errdetails.RetryInfo:
			f.retry = d.GetRetryDelay().AsDuration()
		}
	}
	switch {
	case f.reason == "PORT_CLOSED":
		f.retry = portRetry
	case f.status == http.StatusGone:
		f.message = gone
	}
	return f
}

const gone = "the sandbox of this URL is gone, or was replaced or resumed since; create another URL"

// broken returns the failure of a request that the program did not answer.
func broken(ctx context.Context, err error) *failure {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, errExpired) {
			return failed(cause)
		}
		return &failure{status: statuses["CALL_CANCELLED"], reason: "CALL_CANCELLED", message: "the caller cancelled the request"}
	}
	if f := failed(err); f.reason != "INTERNAL" {
		return f
	}
	return &failure{status: http.StatusBadGateway, reason: "CONNECTION_RESET",
		message: "the program in the sandbox closed the connection or did not answer in HTTP"}
}

// unauthorized is the answer to every request without a valid token, whatever exists.
func unauthorized(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="sandgate"`)
	// The rest of the connection may be a body, which is not read.
	w.Header().Set("Connection", "close")
	fail(w, r, &failure{status: http.StatusUnauthorized, reason: "CREDENTIALS_INVALID",
		message: "this URL needs a token, or its token has expired; create another URL"})
}

// wantsHTML reports whether a browser shows the response.
func wantsHTML(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

// errorHeader tells an answer of fail from one of the program in the sandbox.
const errorHeader = "Sandgate-Error"

// fail answers a request with a page for a browser, and with JSON for a program.
func fail(w http.ResponseWriter, r *http.Request, f *failure) {
	header := w.Header()
	private(header)
	header.Set(errorHeader, f.reason)
	header.Set("X-Content-Type-Options", "nosniff")
	if f.retry > 0 {
		header.Set("Retry-After", strconv.Itoa(max(int((f.retry+time.Second-1)/time.Second), 1)))
	}
	if !wantsHTML(r) {
		header.Set("Content-Type", "application/json")
		w.WriteHeader(f.status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"reason": f.reason, "message": f.message}})
		return
	}
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy)
	w.WriteHeader(f.status)
	_ = page.Execute(w, map[string]any{
		"Title": http.StatusText(f.status), "Message": f.message, "Reason": f.reason,
		"Retry": f.retry > 0 && r.Method == http.MethodGet, "Script": template.JS(retryScript), //nolint:gosec // a constant
	})
}

// Unavailable answers a request to a server that stops.
func Unavailable(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	fail(w, r, &failure{status: http.StatusServiceUnavailable, reason: "SERVER_SHUTTING_DOWN",
		message: "the server is shutting down; try again", retry: time.Second})
}
