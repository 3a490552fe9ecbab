package fault

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Bounds of an error on the wire, in bytes. All of it travels in one trailer,
// partly twice and encoded. C-core clients drop a trailer of more than 8 KiB,
// and the reason with it.
const (
	maxMessage    = 1_024
	maxMetadata   = 1_024
	maxViolations = 1_536
	// maxText bounds one text of an agent or of a caller.
	maxText = 512
)

// shortened returns e within the bounds.
func (e *Error) shortened() *Error {
	short := *e
	short.Message = Clip(e.Message, maxMessage)
	short.Metadata, short.Violations = nil, nil
	left := maxMetadata
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		value := Bounded(e.Metadata[k])
		if left -= len(k) + len(value); left < 0 {
			break
		}
		if short.Metadata == nil {
			short.Metadata = make(map[string]string, len(e.Metadata))
		}
		short.Metadata[k] = value
	}
	left = maxViolations
	for _, v := range e.Violations {
		one := &errdetails.BadRequest_FieldViolation{Field: Bounded(v.GetField()), Description: Bounded(v.GetDescription())}
		if left -= len(one.GetField()) + len(one.GetDescription()) + 8; left < 0 {
			break
		}
		short.Violations = append(short.Violations, one)
	}
	return &short
}

// Status returns the error as callers receive it. An internal error carries
// requestID, so that operators can find its cause in the log.
func (e *Error) Status(requestID string) *status.Status {
	e = e.shortened()
	r, ok := reasons[e.Reason]
	if !ok {
		r = reasons[sandboxv1.ErrorReason_ERROR_REASON_INTERNAL]
	}
	if e.Reason == sandboxv1.ErrorReason_ERROR_REASON_INTERNAL && requestID != "" {
		e = e.With("request_id", requestID)
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: ReasonName(e.Reason), Domain: Domain, Metadata: e.Metadata,
	}}
	if len(e.Violations) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: e.Violations})
	}
	if r.retry > 0 && !e.final {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(cmp.Or(e.retry, r.retry))})
	}
	st := status.New(r.code, e.Message)
	if detailed, err := st.WithDetails(details...); err == nil {
		return detailed
	}
	return st
}

// Bounded returns a text of an agent or a caller, cut to fit into metadata.
func Bounded(s string) string { return Clip(s, maxText) }

// Clip returns at most n bytes of s, as valid UTF-8.
func Clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for !utf8.ValidString(s) && len(s) > n-utf8.UTFMax {
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// StatusReason returns the reason of an error that is a status, such as
// "SANDBOX_NOT_FOUND", and "" if it has none.
func StatusReason(err error) string {
	if err == nil {
		return ""
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
