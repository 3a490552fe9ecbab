package files

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// maxLine is how much of a line a match holds.
const maxLine = 64 << 10

// clip copies a line, cut.
func clip(line []byte) []byte { return bytes.Clone(line[:min(len(line), maxLine)]) }

func matchBytes(m *sandboxv1.SearchMatch) int { return proto.Size(m) + 8 }

// searchReply collects the results of jobs in order, within bounds.
type searchReply struct {
	max      int
	bytes    int
	full     bool
	matches  []*sandboxv1.SearchMatch
	searched int64
	reason   sandboxv1.TruncationReason
}

func (r *searchReply) add(j *job) {
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

// cut notes why the reply is not whole. The last reason in the list of
// TruncationReason is kept.
func (r *searchReply) cut(reason sandboxv1.TruncationReason) { r.reason = max(r.reason, reason) }

func (r *searchReply) response() *sandboxv1.SearchFilesResponse {
	return &sandboxv1.SearchFilesResponse{
		Matches: r.matches, FilesSearched: r.searched,
		Truncated: r.reason != 0, TruncationReason: r.reason,
	}
}
