package policy

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// MaxLabels bounds the labels of a sandbox.
const MaxLabels = 32

const (
	maxPath = 4096 // PATH_MAX
	// maxArgv bounds an argv in bytes: the kernel's limit with the usual stack of
	// 8 MiB.
	maxArgv = 2 << 20
	// maxEnv and maxEnvNames bound an environment. With more, the runtime takes
	// seconds to start a sandbox.
	maxEnv      = 1 << 20
	maxEnvNames = 1_000
)

var (
	sandboxIDPattern  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)
	idPattern         = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)
	labelKeyPattern   = regexp.MustCompile(`^[a-zA-Z0-9._/-]{1,63}$`)
	labelValuePattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{0,63}$`)
)

// Violations collects the invalid fields of a request.
type Violations []violation

type violation struct {
	field, text string
	reason      sandboxv1.ErrorReason
	path        string
}

// Add adds a violation with the reason REQUEST_INVALID.
func (v *Violations) Add(field, format string, args ...any) {
	*v = append(*v, violation{field: field, text: fmt.Sprintf(format, args...),
		reason: sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID})
}

// NotEmpty requires a field of at least one byte.
func (v *Violations) NotEmpty(field string, size int) {
	if size == 0 {
		v.Add(field, "must be given")
	}
}

// Err returns nil if there are no violations. Its reason is that of the first.
func (v Violations) Err() error {
	if len(v) == 0 {
		return nil
	}
	f := fault.New(v[0].reason, "%s: %s", v[0].field, v[0].text)
	if v[0].reason == sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID {
		f = f.With("path", v[0].path)
	}
	for _, one := range v {
		f.Violations = append(f.Violations, &errdetails.BadRequest_FieldViolation{Field: one.field, Description: one.text})
	}
	return f
}

// SandboxID checks the field sandbox_id.
func (v *Violations) SandboxID(id string) {
	switch {
	case id == "":
		v.Add("sandbox_id", "must be given")
	case !sandboxIDPattern.MatchString(id):
		v.Add("sandbox_id", "must be 1 to 128 characters of a-z, A-Z, 0-9, '.', '_', '-', beginning with a letter or digit")
	}
}

// ID checks an id within a sandbox that the caller chose.
func (v *Violations) ID(field, id string, required bool) {
	switch {
	case id == "" && required:
		v.Add(field, "must be given")
	case id != "" && !idPattern.MatchString(id):
		v.Add(field, "must be 1 to 128 characters of a-z, A-Z, 0-9, '.', '_', '-'")
	}
}

// Path checks an absolute path.
func (v *Violations) Path(field, p string) {
	var text string
	switch {
	case p == "":
		text = "must be given"
	case strings.IndexByte(p, 0) >= 0:
		text = "must not hold NUL"
	case !path.IsAbs(p):
		text = "must be absolute"
	case len(p) > maxPath:
		text = fmt.Sprintf("must not be longer than %d bytes", maxPath)
	default:
		return
	}
	*v = append(*v, violation{field: field, text: text, path: fault.Bounded(p),
		reason: sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID})
}

// OptionalPath is Path for a field that may be empty.
func (v *Violations) OptionalPath(field, p string) {
	if p != "" {
		v.Path(field, p)
	}
}

// LoopbackHost checks the host of a Forward. Empty is "localhost".
func (v *Violations) LoopbackHost(field, host string) {
	if host == "" || host == "localhost" {
		return
	}
	if addr, err := netip.ParseAddr(host); err != nil || !addr.IsLoopback() || addr.Zone() != "" {
		v.Add(field, "must be \"localhost\" or a loopback address, such as 127.0.0.1 or ::1")
	}
}

// Port checks a TCP port.
func (v *Violations) Port(field string, port int32) {
	if port < 1 || port > 65_535 {
		v.Add(field, "must be 1 to 65535")
	}
}

// NotNegative rejects numbers below 0.
func (v *Violations) NotNegative(field string, n int64) {
	if n < 0 {
		v.Add(field, "must not be negative")
	}
}

// SHA256 checks a hash that may be left out.
func (v *Violations) SHA256(field string, sum []byte) {
	if len(sum) != 0 && len(sum) != sha256.Size {
		v.Add(field, "must be 32 bytes")
	}
}

// NoNUL rejects texts that hold NUL.
func (v *Violations) NoNUL(field, s string) {
	if strings.IndexByte(s, 0) >= 0 {
		v.Add(field, "must not hold NUL")
	}
}

// Enum rejects values that this version does not know: a guess at what a newer
// client meant could do harm.
func (v *Violations) Enum(field string, n int32, names map[int32]string) {
	if _, ok := names[n]; !ok {
		v.Add(field, "%d is not a known value", n)
	}
}

// Duration checks that d is valid, not negative, and at most limit unless limit
// is 0. A nil d passes.
func (v *Violations) Duration(field string, d *durationpb.Duration, limit time.Duration) {
	switch {
	case d == nil:
	case d.CheckValid() != nil:
		v.Add(field, "is not a valid duration")
	case d.AsDuration() < 0:
		v.Add(field, "must not be negative")
	case limit > 0 && d.AsDuration() > limit:
		v.Add(field, "must be at most %s", limit)
	}
}

// PathLength checks only the length of a path. The agent checks the rest.
func (v *Violations) PathLength(field, p string) {
	if len(p) > maxPath {
		v.Path(field, "/"+p)
	}
}

// Argv checks a program and its arguments.
func (v *Violations) Argv(field string, args []string) {
	size := 0
	for i, a := range args {
		v.NoNUL(fmt.Sprintf("%s[%d]", field, i), a)
		size += len(a) + 1
	}
	if len(args) > 0 && len(args[0]) > maxPath {
		v.Add(field+"[0]", "must not be longer than %d bytes", maxPath)
	}
	if size > maxArgv {
		v.Add(field, "must not be larger than %d bytes; write it to a file, or send it by stdin", maxArgv)
	}
}

// Env checks an environment.
func (v *Violations) Env(field string, env map[string]string) {
	size := 0
	for k, value := range env {
		size += len(k) + len(value)
	}
	if len(env) > maxEnvNames || size > maxEnv {
		v.Add(field, "must not have more than %d names, or be larger than %d bytes", maxEnvNames, maxEnv)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			v.Add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a name must not be empty or hold '=' or NUL")
		}
		if strings.IndexByte(env[k], 0) >= 0 {
			v.Add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a value must not hold NUL")
		}
	}
}

// Labels checks a set of labels.
func (v *Violations) Labels(field string, labels map[string]string) {
	if len(labels) > MaxLabels {
		v.Add(field, "must not be more than %d", MaxLabels)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if !labelKeyPattern.MatchString(k) {
			v.Add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a key must be 1 to 63 characters of a-z, A-Z, 0-9, '.', '_', '-', '/'")
		}
		if !labelValuePattern.MatchString(labels[k]) {
			v.Add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a value must be at most 63 characters of a-z, A-Z, 0-9, '.', '_', '-'")
		}
	}
}

// maxNamedKey is how much of a key a violation shows.
const maxNamedKey = 64

// LabelKey checks the key of a label.
func (v *Violations) LabelKey(field, key string) {
	if !labelKeyPattern.MatchString(key) {
		v.Add(field, "is not a label's key")
	}
}

// Terminal checks the size of a terminal.
func (v *Violations) Terminal(field string, size *sandboxv1.TerminalSize) {
	for _, d := range []struct {
		name string
		n    int32
	}{{"rows", size.GetRows()}, {"columns", size.GetColumns()}} {
		if d.n < 1 || d.n > math.MaxUint16 {
			v.Add(field+"."+d.name, "must lie between 1 and %d", math.MaxUint16)
		}
	}
}

// modeBits are permissions with set-id and sticky bits.
const modeBits = 0o7777

// Mode checks a file mode that may be left out.
func (v *Violations) Mode(mode *uint32) {
	if mode != nil && *mode&^modeBits != 0 {
		v.Add("mode", "must be permission bits, at most 07777")
	}
}

// maxContextLines bounds the lines of context on each side of a match.
const maxContextLines = 20

// ContextLines checks a number of lines of context.
func (v *Violations) ContextLines(field string, n int32) {
	if n < 0 || n > maxContextLines {
		v.Add(field, "must lie between 0 and %d", maxContextLines)
	}
}

func (v *Violations) resources(field string, r providers.Resources) {
	v.NotNegative(field+".memory_bytes", r.MemoryBytes)
	v.NotNegative(field+".cpu_millis", int64(r.CPUMillis))
	v.NotNegative(field+".max_processes", int64(r.MaxProcesses))
	v.NotNegative(field+".disk_bytes", r.DiskBytes)
}
