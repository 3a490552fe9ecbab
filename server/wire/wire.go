// Package wire translates between the plain values of package providers and
// the messages of sandbox.v1.
package wire

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// states holds both sides of a sandbox's state.
var states = map[providers.State]sandboxv1.SandboxState{
	providers.StateUnknown:   sandboxv1.SandboxState_SANDBOX_STATE_UNSPECIFIED,
	providers.StateCreating:  sandboxv1.SandboxState_SANDBOX_STATE_CREATING,
	providers.StateActive:    sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE,
	providers.StateSuspended: sandboxv1.SandboxState_SANDBOX_STATE_SUSPENDED,
	providers.StateDeleting:  sandboxv1.SandboxState_SANDBOX_STATE_DELETING,
	providers.StateFailed:    sandboxv1.SandboxState_SANDBOX_STATE_FAILED,
}

// State returns a state as messages carry it.
func State(s providers.State) sandboxv1.SandboxState { return states[s] }

// StateName returns a state as error metadata and metrics carry it, such as
// "SUSPENDED".
func StateName(s providers.State) string {
	return strings.TrimPrefix(states[s].String(), "SANDBOX_STATE_")
}

// StateFrom is the reverse of State. It reports false for an unknown state.
func StateFrom(s sandboxv1.SandboxState) (providers.State, bool) {
	for state, wire := range states {
		if wire == s && state != providers.StateUnknown {
			return state, true
		}
	}
	return providers.StateUnknown, false
}

var networks = map[providers.NetworkMode]sandboxv1.NetworkMode{
	providers.NetworkUnset: sandboxv1.NetworkMode_NETWORK_MODE_UNSPECIFIED,
	providers.NetworkNone:  sandboxv1.NetworkMode_NETWORK_MODE_NONE,
	providers.NetworkProxy: sandboxv1.NetworkMode_NETWORK_MODE_PROXY,
	providers.NetworkFull:  sandboxv1.NetworkMode_NETWORK_MODE_FULL,
}

// Network returns a network mode as messages carry it.
func Network(m providers.NetworkMode) sandboxv1.NetworkMode { return networks[m] }

// NetworkFrom is the reverse of Network. It returns NetworkUnset for an unknown
// mode.
func NetworkFrom(m sandboxv1.NetworkMode) providers.NetworkMode {
	for mode, wire := range networks {
		if wire == m {
			return mode
		}
	}
	return providers.NetworkUnset
}

// Resources returns resources as messages carry them.
func Resources(r providers.Resources) *sandboxv1.Resources {
	return &sandboxv1.Resources{
		MemoryBytes: r.MemoryBytes, CpuMillis: r.CPUMillis,
		MaxProcesses: r.MaxProcesses, DiskBytes: r.DiskBytes,
	}
}

// ResourcesFrom is the reverse of Resources. A nil message has no limits.
func ResourcesFrom(r *sandboxv1.Resources) providers.Resources {
	return providers.Resources{
		MemoryBytes: r.GetMemoryBytes(), CPUMillis: r.GetCpuMillis(),
		MaxProcesses: r.GetMaxProcesses(), DiskBytes: r.GetDiskBytes(),
	}
}

// Timestamp leaves the zero time unset.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Duration leaves 0, which means none, unset.
func Duration(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

// ExitReason names the end of a command in logs, records and metrics, such as
// "TIMED_OUT".
func ExitReason(e *sandboxv1.Exited) string {
	return strings.TrimPrefix(e.GetReason().String(), "EXIT_REASON_")
}
