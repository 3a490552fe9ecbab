package agentsandbox

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// record is what the provider stores about a sandbox, in an annotation.
type record struct {
	shared.Sandbox
	// Target is the adopted object; nil for a sandbox that Sandgate created.
	Target *target `json:"target,omitempty"`
}

func newRecord(spec providers.Spec) record { return record{Sandbox: shared.New(spec)} }

func (r record) encode() (string, error) {
	data, err := json.Marshal(r)
	return string(data), err
}

func decodeRecord(text string) (record, error) {
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("the sandbox's record cannot be read: %w", err)
	}
	return r, nil
}

// lifecycle is when the cluster ends the sandbox by itself. The server ends an
// idle one before that, and asks the agent first, so here idleness has a grace:
// it is for sandboxes that no server is left for.
func (r record) lifecycle(grace time.Duration, afterFinished *int32) *lifecycle {
	l := &lifecycle{ShutdownPolicy: policyForeground, TTLSecondsAfterFinished: afterFinished}
	var end time.Time
	if r.Spec.TTL > 0 {
		end = r.CreateTime.Add(r.Spec.TTL)
	}
	if r.Spec.IdleTTL > 0 {
		if idle := r.LastActivity.Add(r.Spec.IdleTTL + grace); end.IsZero() || idle.Before(end) {
			end = idle
		}
	}
	if !end.IsZero() {
		// The API keeps whole seconds, and early would be a broken promise.
		t := metav1.NewTime(end.Add(time.Second - 1).Truncate(time.Second))
		l.ShutdownTime = &t
	}
	return l
}
