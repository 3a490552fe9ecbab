package auditlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/test/daemon"
)

// runCommand runs "sandgate audit".
func runCommand(ctx context.Context, out *daemon.Log, args ...string) (string, error) {
	cmd := NewCommand("")
	cmd.Flags().StringP("output", "o", "text", "")
	var stderr bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(&stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(ctx)
	return stderr.String(), err
}

// ids returns the request ids of JSON lines.
func ids(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(text) {
		var r struct {
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r.RequestID)
	}
	return all
}

func TestAuditFilters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code := int32(3)
	log := audit.NewLog(f)
	for _, r := range []audit.Record{
		{RequestID: "1", Phase: audit.Started, Tenant: "a", Principal: "ann", Operation: "Execute", SandboxID: "x", Program: "/bin/sh"},
		{RequestID: "2", Phase: audit.Ended, Tenant: "a", Principal: "ann", Operation: "Execute", SandboxID: "x", Code: "OK", ExitReason: "EXITED", ExitCode: &code},
		{RequestID: "3", Phase: audit.Ended, Tenant: "b", Principal: "bob", Operation: "StatFile", SandboxID: "y", Path: "/\x1b[31mred", Code: "NotFound", Reason: "FILE_NOT_FOUND"},
		{RequestID: "4", Phase: audit.Refused, Operation: "ListSandboxes", Code: "Unauthenticated", Reason: "CREDENTIALS_INVALID"},
	} {
		if err := log.Audit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	// A torn line, an empty one, one of another program, and one without an end.
	fmt.Fprint(f, "{\"time\":\"2026-01\n\nhello\n"+strings.Repeat("x", 3*maxLine)+"\n{\"msg\":\"audit\"")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all":       {want: "1 2 3 4"},
		"tenant":    {[]string{"--tenant", "a"}, "1 2"},
		"principal": {[]string{"--principal", "bob"}, "3"},
		"method":    {[]string{"--method", "Execute", "--phase", "ended"}, "2"},
		"sandbox":   {[]string{"--sandbox", "y"}, "3"},
		"request":   {[]string{"--request-id", "4"}, "4"},
		"failed":    {[]string{"--outcome", "failed"}, "3 4"},
		"code":      {[]string{"--outcome", "notfound"}, "3"},
		"reason":    {[]string{"--outcome", "CREDENTIALS_INVALID"}, "4"},
		"exit":      {[]string{"--outcome", "EXITED"}, "2"},
		"phases":    {[]string{"--phase", "started,refused"}, "1 4"},
		"since":     {[]string{"--since", "1h"}, "1 2 3 4"},
		"until":     {[]string{"--until", "1h"}, ""},
		"time":      {[]string{"--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02T00:00:00Z"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out daemon.Log
			stderr, err := runCommand(t.Context(), &out, append(c.args, "--output", "json", path)...)
			if err != nil || strings.Join(ids(t, out.String()), " ") != c.want {
				t.Errorf("%v, %v, want %s", out.String(), err, c.want)
			}
			if !strings.HasPrefix(stderr, "4 lines are not audit records") {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
	var out daemon.Log
	if _, err := runCommand(t.Context(), &out, path); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, "OK, EXITED 3") ||
		!strings.Contains(text, "NotFound FILE_NOT_FOUND") || strings.Count(text, "\n") != 5 {
		t.Errorf("table:\n%s", text)
	}
	for _, args := range [][]string{{"--since", "yesterday"}, {"--phase", "begun"}, {filepath.Join(t.TempDir(), "no", "file")},
		{filepath.Join(t.TempDir(), "none.log")}, {"--follow", filepath.Join(t.TempDir(), "none.log")}} {
		if _, err := runCommand(t.Context(), &out, args...); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// Rotated files come first, oldest first, however they were rotated.
func TestAuditReadsRotatedFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	for i, name := range []string{"audit.log.2.gz", "audit.log.1", "audit-2026-01-02T03-04-05.000.log", "audit.log"} {
		var b bytes.Buffer
		if err := audit.NewLog(&b).Audit(t.Context(), audit.Record{RequestID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
		content := b.Bytes()
		if strings.HasSuffix(name, ".gz") {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			_, _ = z.Write(content)
			z.Close()
			content = packed.Bytes()
		}
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, content, 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(at, when, when); err != nil {
			t.Fatal(err)
		}
	}
	// The second is being written by logrotate.
	for _, name := range []string{"other.log", "audit.log.1.gz"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out daemon.Log
	stderr, err := runCommand(t.Context(), &out, "--output", "json", path)
	if err != nil || stderr != "" || strings.Join(ids(t, out.String()), " ") != "0 1 2 3" {
		t.Errorf("%s, %v, %s", out.String(), err, stderr)
	}
}

// A table of a long log is printed while the log is read.
func TestAuditTableIsPrintedInParts(t *testing.T) {
	var log bytes.Buffer
	to := audit.NewLog(&log)
	for i := range tableRows + 1 {
		if err := to.Audit(t.Context(), audit.Record{SandboxID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	p := &printer{out: &out}
	lines := 0
	err := readAll(&log, func(raw []byte) error {
		if lines++; lines == 1 {
			p.table = tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
			p.out = p.table
		}
		return p.line(raw)
	})
	if got := strings.Count(out.String(), "\n"); err != nil || got != tableRows {
		t.Errorf("%d lines before the end, %v", got, err)
	}
}

// Every record is printed once and in order while the log is rotated often: by the
// server itself, and by a program that renames the file before the server knows.
func TestAuditFollowsRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	file := &lumberjack.Logger{Filename: path}
	defer file.Close()
	log := audit.NewLog(file)
	write := func(i int) {
		if err := log.Audit(t.Context(), audit.Record{RequestID: fmt.Sprint(i)}); err != nil {
			t.Error(err)
		}
	}
	write(0)
	ctx, stop := context.WithCancelCause(t.Context())
	var out daemon.Log
	done := make(chan error, 1)
	go func() {
		_, err := runCommand(ctx, &out, "--follow", "--output", "json", path)
		done <- err
	}()
	want := []string{"0"}
	for i := 1; i <= 60; i++ {
		if i%10 == 3 || i%10 == 6 {
			// Files have their order from their times.
			awaitText(t, &out, fmt.Sprintf(`"request_id":"%d"`, i-1))
		}
		switch i % 10 {
		case 3:
			if err := file.Rotate(); err != nil {
				t.Fatal(err)
			}
		case 6: // logrotate: rename, perhaps create, and later SIGHUP
			if err := os.Rename(path, fmt.Sprintf("%s.%d", path, i)); err != nil {
				t.Fatal(err)
			}
			if i%20 == 6 {
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		case 8:
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
		write(i)
		want = append(want, fmt.Sprint(i))
	}
	awaitText(t, &out, `"request_id":"60"`)
	stop(nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := ids(t, out.String()); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func awaitText(t *testing.T, out *daemon.Log, text string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come: %s", text, out.String())
		}
	}
}
