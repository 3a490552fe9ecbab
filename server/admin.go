package server

import (
	"io"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A scrape may take a while if many sandboxes are counted, and two at once are
// enough.
const (
	scrapeTimeout = 10 * time.Second
	scrapesAtOnce = 4
)

// AdminHandler serves operators: /metrics for Prometheus, /healthz (the process
// answers) and /readyz (the server accepts calls, and its provider works). It
// needs no credentials, and names tenants but no sandbox and no caller. With
// profiles it also serves /debug/pprof, which can slow the server down and reveals its
// memory.
func (s *Server) AdminHandler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.Registry, promhttp.HandlerOpts{
		Timeout: scrapeTimeout, MaxRequestsInFlight: scrapesAtOnce, Registry: s.metrics.Registry,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case s.leaving.Load():
			answer(w, http.StatusServiceUnavailable, "the server is stopping")
		case s.unready.Load():
			answer(w, http.StatusServiceUnavailable, "the provider does not work; see the log")
		default:
			answer(w, http.StatusOK, "ok")
		}
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// Registry returns the server's metrics, and takes more of them.
func (s *Server) Registry() *prometheus.Registry { return s.metrics.Registry }

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}
