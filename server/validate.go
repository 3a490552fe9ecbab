package server

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

const (
	maxPath   = 4096 // PATH_MAX
	maxLabels = 32
	// maxArgv bounds an argv in bytes: what the kernel takes with the usual
	// stack of 8 MiB.
	maxArgv = 2 << 20
	// maxEnv and maxEnvNames bound an environment. The runtime that starts a
	// sandbox takes seconds for more.
	maxEnv      = 1 << 20
	maxEnvNames = 1_000
)

var (
	sandboxIDPattern  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)
	idPattern         = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)
	labelKeyPattern   = regexp.MustCompile(`^[a-zA-Z0-9._/-]{1,63}$`)
	labelValuePattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{0,63}$`)
)

// violations collects what is wrong with a request, field by field.
type violations []violation

type violation struct {
	field, text string
	reason      sandboxv1.ErrorReason
	path        string
}

func (v *violations) add(field, format string, args ...any) {
	*v = append(*v, violation{field: field, text: fmt.Sprintf(format, args...),
		reason: sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID})
}

// err returns nil when nothing is wrong. The reason is that of the first
// violation.
func (v violations) err() error {
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

func (v *violations) sandboxID(id string) {
	switch {
	case id == "":
		v.add("sandbox_id", "must be given")
	case !sandboxIDPattern.MatchString(id):
		v.add("sandbox_id", "must be 1 to 128 characters of a-z, A-Z, 0-9, '.', '_', '-', beginning with a letter or digit")
	}
}

// id checks an id of the caller's within a sandbox.
func (v *violations) id(field, id string, required bool) {
	switch {
	case id == "" && required:
		v.add(field, "must be given")
	case id != "" && !idPattern.MatchString(id):
		v.add(field, "must be 1 to 128 characters of a-z, A-Z, 0-9, '.', '_', '-'")
	}
}

// path checks an absolute path.
func (v *violations) path(field, p string) {
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

func (v *violations) optionalPath(field, p string) {
	if p != "" {
		v.path(field, p)
	}
}

func (v *violations) notNegative(field string, n int64) {
	if n < 0 {
		v.add(field, "must not be negative")
	}
}

func (v *violations) sha256(field string, sum []byte) {
	if len(sum) != 0 && len(sum) != sha256.Size {
		v.add(field, "must be 32 bytes")
	}
}

func (v *violations) noNUL(field, s string) {
	if strings.IndexByte(s, 0) >= 0 {
		v.add(field, "must not hold NUL")
	}
}

// enum refuses values that this version does not know: guessing at what a
// newer client meant could do harm.
func (v *violations) enum(field string, n int32, names map[int32]string) {
	if _, ok := names[n]; !ok {
		v.add(field, "%d is not a known value", n)
	}
}

// duration checks that d is well-formed, not negative and at most limit, when
// limit is not 0.
func (v *violations) duration(field string, d *durationpb.Duration, limit time.Duration) {
	switch {
	case d == nil:
	case d.CheckValid() != nil:
		v.add(field, "is not a valid duration")
	case d.AsDuration() < 0:
		v.add(field, "must not be negative")
	case limit > 0 && d.AsDuration() > limit:
		v.add(field, "must be at most %s", limit)
	}
}

// length checks no more of a path than its length, where the agent checks the
// rest.
func (v *violations) length(field, p string) {
	if len(p) > maxPath {
		v.path(field, "/"+p)
	}
}

// argv checks a program and its arguments.
func (v *violations) argv(field string, args []string) {
	size := 0
	for i, a := range args {
		v.noNUL(fmt.Sprintf("%s[%d]", field, i), a)
		size += len(a) + 1
	}
	if len(args) > 0 && len(args[0]) > maxPath {
		v.add(field+"[0]", "must not be longer than %d bytes", maxPath)
	}
	if size > maxArgv {
		v.add(field, "must not be larger than %d bytes; write it to a file, or send it by stdin", maxArgv)
	}
}

func (v *violations) env(field string, env map[string]string) {
	size := 0
	for k, value := range env {
		size += len(k) + len(value)
	}
	if len(env) > maxEnvNames || size > maxEnv {
		v.add(field, "must not have more than %d names, or be larger than %d bytes", maxEnvNames, maxEnv)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			v.add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a name must not be empty or hold '=' or NUL")
		}
		if strings.IndexByte(env[k], 0) >= 0 {
			v.add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a value must not hold NUL")
		}
	}
}

func (v *violations) labels(field string, labels map[string]string) {
	if len(labels) > maxLabels {
		v.add(field, "must not be more than %d", maxLabels)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if !labelKeyPattern.MatchString(k) {
			v.add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a key must be 1 to 63 characters of a-z, A-Z, 0-9, '.', '_', '-', '/'")
		}
		if !labelValuePattern.MatchString(labels[k]) {
			v.add(fmt.Sprintf("%s[%q]", field, fault.Clip(k, maxNamedKey)), "a value must be at most 63 characters of a-z, A-Z, 0-9, '.', '_', '-'")
		}
	}
}

// maxNamedKey is how much of a key a violation shows.
const maxNamedKey = 64
