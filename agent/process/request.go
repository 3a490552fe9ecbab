package process

import (
	"crypto/sha256"
	"math"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// checkExecute rejects an invalid request.
func checkExecute(r *sandboxv1.ExecuteRequest) error {
	if err := checkExecID(r.GetExecId(), true); err != nil {
		return err
	}
	switch cmd := r.GetCommand().(type) {
	case *sandboxv1.ExecuteRequest_Shell:
		if strings.ContainsRune(cmd.Shell, 0) {
			return invalid("shell", "must not contain NUL")
		}
	case *sandboxv1.ExecuteRequest_Argv:
		args := cmd.Argv.GetArgs()
		if len(args) == 0 || args[0] == "" {
			return invalid("argv", "must name a program")
		}
		for _, arg := range args {
			if strings.ContainsRune(arg, 0) {
				return invalid("argv", "must not contain NUL")
			}
		}
	default:
		return invalid("command", "shell or argv is required")
	}
	if p := r.GetShellPath(); p != "" && (!filepath.IsAbs(p) || strings.ContainsRune(p, 0)) {
		return invalid("shell_path", "must be an absolute path")
	}
	if p := r.GetCwd(); p != "" && (!filepath.IsAbs(p) || strings.ContainsRune(p, 0)) {
		return invalid("cwd", "must be an absolute path")
	}
	for k, v := range r.GetEnv() {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return invalid("env", "names must not be empty or contain \"=\" or NUL, values must not contain NUL")
		}
	}
	if t := r.GetTerminal(); t != nil {
		if err := checkSize(t); err != nil {
			return err
		}
	}
	if r.MaxOutputBytes != nil && r.GetMaxOutputBytes() < 0 {
		return invalid("max_output_bytes", "must not be negative")
	}
	if t := r.GetTimeout(); t != nil && (t.CheckValid() != nil || t.AsDuration() < 0) {
		return invalid("timeout", "must not be negative")
	}
	if t := r.GetDisconnectGrace(); t != nil && (t.CheckValid() != nil || t.AsDuration() < 0) {
		return invalid("disconnect_grace", "must not be negative")
	}
	return nil
}

func checkSize(t *sandboxv1.TerminalSize) error {
	if t.GetRows() < 1 || t.GetRows() > math.MaxUint16 || t.GetColumns() < 1 || t.GetColumns() > math.MaxUint16 {
		return invalid("terminal", "rows and columns must be from 1 to 65535")
	}
	return nil
}

func checkExecID(id string, optional bool) error {
	if id == "" && optional {
		return nil
	}
	if len(id) < 1 || len(id) > 128 {
		return invalid("exec_id", "must have 1 to 128 characters")
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return invalid("exec_id", "may contain a-z, A-Z, 0-9, \".\", \"_\" and \"-\" only")
		}
	}
	return nil
}

func commandText(r *sandboxv1.ExecuteRequest) string {
	if argv := r.GetArgv(); argv != nil {
		return strings.Join(argv.GetArgs(), " ")
	}
	return r.GetShell()
}

// requestHash returns a hash by which two requests with one exec_id are compared.
func requestHash(r *sandboxv1.ExecuteRequest) [32]byte {
	same := (&sandboxv1.ExecuteRequest{}).ProtoReflect()
	r.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f.Name() {
		case "sandbox_id", "expected_incarnation", "exec_id":
		default:
			same.Set(f, v)
		}
		return true
	})
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(same.Interface())
	if err != nil {
		return [32]byte{}
	}
	return sha256.Sum256(b)
}

// timeout returns the command's timeout, 0 for none.
func timeout(r *sandboxv1.ExecuteRequest, l *agentv1.Limits) time.Duration {
	d := l.GetDefaultTimeout().AsDuration()
	if r.GetTimeout() != nil {
		d = r.GetTimeout().AsDuration()
	}
	if limit := l.GetMaxTimeout().AsDuration(); limit > 0 && (d == 0 || d > limit) {
		d = limit
	}
	return d
}

// maxOutput returns how many bytes of output are stored, 0 for all, negative for
// none.
func maxOutput(r *sandboxv1.ExecuteRequest, l *agentv1.Limits) int64 {
	limit := l.GetMaxOutputBytes()
	if r.MaxOutputBytes == nil {
		return limit
	}
	want := r.GetMaxOutputBytes()
	if limit > 0 {
		want = min(want, limit)
	}
	if want == 0 {
		return -1
	}
	return want
}
