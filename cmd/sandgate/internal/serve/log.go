package serve

import (
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/sandgate/sandgate/server"
)

func newLogger(level, format string, w io.Writer) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is none of debug, info, warn, error", level)
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
	case "json":
		return slog.New(jsonHandler(w, l)), nil
	default:
		return nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
	}
}

// jsonHandler writes durations as text, such as "1.5s".
func jsonHandler(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}})
}

// announce prints the server's address, whatever the level of the log.
func (c config) announce(stderr io.Writer, cfg server.Config, at net.Addr, admin string) {
	if c.Log.Format == "json" {
		attrs := []any{"version", cfg.Version, "address", address(c.Listen, at), "provider", c.Provider,
			"tls", cfg.TLS != nil, "authentication", cfg.Authenticator != nil}
		if admin != "" {
			attrs = append(attrs, "admin_address", admin)
		}
		if cfg.Preview != nil {
			attrs = append(attrs, "preview", announcePreview(cfg.Preview))
		}
		slog.New(jsonHandler(stderr, slog.LevelInfo)).Info("serving", attrs...)
		return
	}
	if admin != "" {
		fmt.Fprintf(stderr, "sandgate: metrics and health at %s\n", admin)
	}
	if cfg.Preview != nil {
		fmt.Fprintf(stderr, "sandgate: URLs at %s\n", announcePreview(cfg.Preview))
	}
	// Last, for those who wait for this line and read the others then.
	fmt.Fprintf(stderr, "sandgate %s serves at %s, provider %s, %s\n", cfg.Version, address(c.Listen, at), c.Provider, mode(cfg))
}

// LoggedError is an error that the log holds already, so it need not be printed.
type LoggedError struct{ error }

// Unwrap returns the error itself.
func (e LoggedError) Unwrap() error { return e.error }

// report logs the error that ends the server if the log is JSON, so that every line
// on standard error is JSON.
func (l logConfig) report(stderr io.Writer, err error) error {
	if err == nil || l.Format != "json" {
		return err
	}
	slog.New(jsonHandler(stderr, slog.LevelInfo)).Error("the server ended", "error", err)
	return LoggedError{err}
}

// mode describes in a few words how callers are authenticated.
func mode(cfg server.Config) string {
	s := "no authentication"
	if cfg.Authenticator != nil {
		s = "authentication by " + cfg.Authenticator.Name()
	}
	if cfg.TLS != nil {
		return "TLS, " + s
	}
	return "no TLS, " + s
}
