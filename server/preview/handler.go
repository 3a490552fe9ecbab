package preview

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
)

// Config configures a Handler. All fields must be set.
type Config struct {
	URLs *URLs
	// Sandboxes returns a client whose calls are those of a principal.
	Sandboxes func(authn.Principal) sandboxv1.SandboxServiceClient
	// Authenticated is called once a request has a valid token.
	Authenticated func(ctx context.Context)
	// Ended is called when a request has ended.
	Ended func(ctx context.Context, e Ended)
	Log   *slog.Logger
}

// Ended describes a request that has ended.
type Ended struct {
	// Kind is "port", "file", or "refused" for one without a valid token.
	Kind string
	// Status is that of the response; 101 for a connection that was upgraded.
	Status int
}

// Kinds of requests.
const (
	KindPort    = "port"
	KindFile    = "file"
	KindRefused = "refused"
)

// Handler serves the requests of a preview domain.
type Handler struct {
	cfg Config
	// resumes are the resumptions in progress, by sandbox.
	resumes singleflight.Group
}

var _ http.Handler = (*Handler)(nil)

// NewHandler returns a Handler.
func NewHandler(cfg Config) *Handler { return &Handler{cfg: cfg} }

// Bounds of reading and writing a connection.
const (
	// refusalTime is how long a request without a valid token may take.
	refusalTime = 10 * time.Second
	// endTime is how long the answer to a request may take whose token expires meanwhile.
	endTime = time.Second
)

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &response{ResponseWriter: w}
	out.until(time.Now().Add(refusalTime))
	ended := Ended{Kind: KindRefused}
	defer func() {
		ended.Status = out.status
		h.cfg.Ended(r.Context(), ended)
	}()
	// An absolute target names a host of its own, and CONNECT and "*" name no path.
	if !strings.HasPrefix(r.RequestURI, "/") || r.Method == http.MethodConnect {
		out.Header().Set("Connection", "close")
		fail(out, r, &failure{status: http.StatusBadRequest, reason: "REQUEST_INVALID", message: "the request's target must be a path"})
		return
	}
	p, ok := h.permit(r)
	if !ok {
		unauthorized(out, r)
		return
	}
	h.cfg.Authenticated(r.Context())
	ended.Kind = KindPort
	if p.claims.Path != "" {
		ended.Kind = KindFile
	}
	// A connection that stays open, such as a WebSocket, ends with its token, and so does
	// one whose peer neither sends nor receives.
	out.until(p.claims.Expires.Add(endTime))
	ctx, cancel := context.WithDeadlineCause(r.Context(), p.claims.Expires, errExpired)
	defer cancel()
	r = r.WithContext(ctx)
	if p.claims.Path != "" {
		h.file(out, r, p)
		return
	}
	// The address bar, the history and Referer should not have the token.
	if p.inQuery && (r.Method == http.MethodGet || r.Method == http.MethodHead) && wantsHTML(r) {
		h.redirect(out, r, p)
		return
	}
	h.port(out, r, p)
}

// permit is what the token of a request permits.
type permit struct {
	claims Claims
	token  string
	// inQuery is true if the token was a query parameter, which query lacks.
	inQuery bool
	query   string
}

func (p permit) principal() authn.Principal {
	return authn.Principal{Name: p.claims.Principal, Tenant: p.claims.Tenant, Issuer: p.claims.Issuer}
}

// permit returns what a request's token permits. It reports false unless the token is
// valid and for the request's host.
func (h *Handler) permit(r *http.Request) (permit, bool) {
	inQuery, query := cutToken(r.URL.RawQuery)
	candidates := append(inQuery, bearer(r.Header)...)
	for _, c := range r.CookiesNamed(cookieName) {
		candidates = append(candidates, c.Value)
	}
	// There is one of each, unless somebody is trying.
	for i, token := range candidates[:min(len(candidates), 4)] {
		claims, err := h.cfg.URLs.keys.open(token, time.Now())
		if err == nil && h.cfg.URLs.serves(r.Host, claims) {
			return permit{claims: claims, token: token, inQuery: i < len(inQuery), query: query}, true
		}
	}
	return permit{}, false
}

// cutToken returns the tokens in a query, and the query without them.
func cutToken(query string) (tokens []string, rest string) {
	var others []string
	for _, one := range strings.Split(query, "&") {
		if name, value, _ := strings.Cut(one, "="); name == tokenParameter {
			tokens = append(tokens, value)
		} else {
			others = append(others, one)
		}
	}
	return tokens, strings.Join(others, "&")
}

// bearer returns the token of the Authorization header.
func bearer(header http.Header) []string {
	scheme, token, ok := strings.Cut(header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return nil
	}
	return []string{strings.TrimSpace(token)}
}

// redirect stores the token in a cookie and sends the browser to the URL without it.
func (h *Handler) redirect(w http.ResponseWriter, r *http.Request, p permit) {
	origin, err := h.cfg.URLs.origin(p.claims)
	if err != nil {
		fail(w, r, failed(err))
		return
	}
	target := *r.URL
	target.RawQuery = p.query
	http.SetCookie(w, cookie(p.token, time.Until(p.claims.Expires)))
	private(w.Header())
	w.Header().Set("Location", origin+target.RequestURI())
	w.WriteHeader(http.StatusFound)
}

// renewed sends the caller to the URL of a sandbox's new incarnation.
func (h *Handler) renewed(w http.ResponseWriter, r *http.Request, p permit, incarnation string) {
	p.claims.Incarnation = incarnation
	u, err := h.cfg.URLs.Create(p.claims)
	if err != nil {
		fail(w, r, failed(err))
		return
	}
	origin, err := h.cfg.URLs.origin(p.claims)
	if err != nil {
		fail(w, r, failed(err))
		return
	}
	target := *r.URL
	target.RawQuery = strings.TrimPrefix(p.query+"&"+tokenParameter+"="+u.Token, "&")
	private(w.Header())
	w.Header().Set("Location", origin+target.RequestURI())
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// resumed reports whether err is that the sandbox is suspended, and then resumes it
// and answers the request.
func (h *Handler) resumed(w http.ResponseWriter, r *http.Request, p permit, err error) bool {
	if f := failed(err); f.reason != "SANDBOX_NOT_ACTIVE" || f.state != "SUSPENDED" || background(r, p) {
		return false
	}
	// All requests that arrive meanwhile wait for the same resumption, which ends with
	// none of them.
	key := p.claims.Tenant + "\x00" + p.claims.SandboxID + "\x00" + p.claims.Incarnation
	answer := h.resumes.DoChan(key, func() (any, error) { return h.resume(context.WithoutCancel(r.Context()), p) })
	select {
	case got := <-answer:
		if got.Err != nil {
			fail(w, r, failed(got.Err))
			return true
		}
		h.renewed(w, r, p, got.Val.(string))
	case <-r.Context().Done():
		fail(w, r, broken(r.Context(), nil))
	}
	return true
}

// background reports whether a page that is already open makes the request. A forgotten
// tab, which tries to reconnect for ever, would resume a sandbox as soon as it is
// suspended, and cannot follow the redirect.
func background(r *http.Request, p permit) bool {
	page := r.Header.Get("Sec-Fetch-Site") != "" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
	return p.claims.Port != 0 && (page || r.Header.Get("Upgrade") != "")
}

// errReplaced is for a URL of a former incarnation of a sandbox that is suspended.
var errReplaced = errors.New("the sandbox has another incarnation")

// resume resumes a sandbox and returns its new incarnation.
func (h *Handler) resume(ctx context.Context, p permit) (string, error) {
	sandboxes := h.cfg.Sandboxes(p.principal())
	now, err := sandboxes.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: p.claims.SandboxID})
	if err != nil {
		return "", err
	}
	if now.GetSandbox().GetIncarnation() != p.claims.Incarnation {
		return "", errReplaced
	}
	resumed, err := sandboxes.ResumeSandbox(ctx, &sandboxv1.ResumeSandboxRequest{SandboxId: p.claims.SandboxID})
	return resumed.GetSandbox().GetIncarnation(), err
}

// response remembers the status of a response.
type response struct {
	http.ResponseWriter
	status int
	// end is when reading and writing the connection fail.
	end time.Time
}

// until sets end. It fails only for a connection that is closed.
func (w *response) until(end time.Time) {
	w.end = end
	c := http.NewResponseController(w.ResponseWriter)
	_ = c.SetReadDeadline(end)
	_ = c.SetWriteDeadline(end)
}

// Hijack implements http.Hijacker. It clears the deadlines of a connection.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buf, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		_ = conn.SetDeadline(w.end)
	}
	return conn, buf, err
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	// Others with 1xx come before the response.
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
