package search

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	// maxLine is how much of a line a match contains.
	maxLine = 64 << 10
	// maxReply bounds a reply, below the 4 MiB that gRPC accepts by default.
	maxReply = 3 << 20
)

// Why a reply is incomplete.
const (
	cutCount      = sandboxv1.TruncationReason_TRUNCATION_REASON_COUNT
	cutTime       = sandboxv1.TruncationReason_TRUNCATION_REASON_TIME
	cutUnreadable = sandboxv1.TruncationReason_TRUNCATION_REASON_UNREADABLE
)

// clip copies a line, cut to maxLine.
func clip(line []byte) []byte { return bytes.Clone(line[:min(len(line), maxLine)]) }

func matchBytes(m *sandboxv1.SearchMatch) int { return proto.Size(m) + 8 }

// reply collects the results of jobs in order, within bounds.
type reply struct {
	max      int
	bytes    int
	full     bool
	matches  []*sandboxv1.SearchMatch
	searched int64
	reason   sandboxv1.TruncationReason
}

func (r *reply) add(j *job) {
	for _, m := range j.matches {
		n := matchBytes(m)
		if len(r.matches) == r.max || r.bytes+n > maxReply {
			r.full = true
			break
		}
		r.matches = append(r.matches, m)
		r.bytes += n
	}
	r.searched += j.searched
	if r.full = r.full || j.more; r.full {
		r.cut(cutCount)
	}
	if j.unreadable {
		r.cut(cutUnreadable)
	}
}

// cut records why the reply is incomplete. The highest TruncationReason counts.
func (r *reply) cut(reason sandboxv1.TruncationReason) { r.reason = max(r.reason, reason) }

func (r *reply) response() *sandboxv1.SearchFilesResponse {
	return &sandboxv1.SearchFilesResponse{
		Matches: r.matches, FilesSearched: r.searched,
		Truncated: r.reason != 0, TruncationReason: r.reason,
	}
}
