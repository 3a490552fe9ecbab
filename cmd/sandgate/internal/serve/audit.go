package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/sandgate/sandgate/server/audit"
)

// auditLog is an open audit log. After close, the next record opens the file again,
// or a new one if the file was renamed.
type auditLog struct {
	audit.Sink
	close func() error
}

// open opens the audit log. A file is only ever appended to.
func (a auditConfig) open(stateDir string, stderr io.Writer) (auditLog, error) {
	if a.File == "-" {
		return auditLog{audit.NewLog(stderr), func() error { return nil }}, nil
	}
	path := a.File
	if path == "" {
		path = filepath.Join(stateDir, "audit.log")
	}
	first, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = first.Close()
	}
	if err != nil {
		return auditLog{}, fmt.Errorf("audit file: %w", err)
	}
	file := &lumberjack.Logger{Filename: path, MaxSize: a.MaxSize, MaxBackups: a.MaxFiles}
	return auditLog{audit.NewLog(file), file.Close}, nil
}

// reopenOnHangup reopens the audit log on each SIGHUP until ctx ends. Tokens and
// certificates need no signal: they are reloaded when they change.
func (l auditLog) reopenOnHangup(ctx context.Context, logger *slog.Logger) (stop func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				if err := l.close(); err != nil {
					logger.Error("the audit log could not be reopened", "error", err)
					continue
				}
				logger.Info("audit log reopened")
			}
		}
	}()
	return func() {
		cancel(nil)
		<-done
		// Without signal.Stop: SIGHUP must not interrupt the shutdown.
	}
}
