package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Bounds of the requests to an issuer.
const (
	// fetchTimeout bounds one request.
	fetchTimeout = 10 * time.Second
	// maxDocument bounds the issuer's metadata and its key set, in bytes.
	maxDocument = 256 << 10
	// maxKeys bounds the keys of an issuer.
	maxKeys = 64
	// refreshInterval is how often the keys are fetched: a key that the issuer
	// has withdrawn counts that long.
	refreshInterval = 5 * time.Minute
	// minFetchInterval is the time between two fetches for tokens whose key is not
	// known, so that forged tokens can't make the server flood the issuer.
	minFetchInterval = time.Second
	// maxFetchInterval is the longest time between two attempts while the issuer
	// does not answer.
	maxFetchInterval = 30 * time.Second
	// maxKeyAge is how long keys count while the issuer does not answer.
	maxKeyAge = 24 * time.Hour
	// maxKeyWaiters bounds the calls that wait for an issuer's keys.
	maxKeyWaiters = 256
)

// Bounds of an RSA modulus, in bits. Checking a signature with a larger one costs
// too much.
const (
	minRSABits = 2_048
	maxRSABits = 8_192
)

// keySet is what an issuer published at one time.
type keySet struct {
	keys []jose.JSONWebKey
	sum  [sha256.Size]byte
}

// maxAnonymous bounds the keys that are tried for a token without a key id.
const maxAnonymous = 4

// candidates returns the keys that may have signed a token: the one with its key
// id, or some without one.
func (k *keySet) candidates(id string) []jose.JSONWebKey {
	if id == "" {
		return k.keys[:min(len(k.keys), maxAnonymous)]
	}
	for i := range k.keys {
		if k.keys[i].KeyID == id {
			return k.keys[i : i+1]
		}
	}
	return nil
}

// issuerKeys keeps an issuer's keys. One goroutine fetches them.
type issuerKeys struct {
	issuer string
	client *http.Client
	log    *slog.Logger
	// fetch is fetchOnce, or asks an API server.
	fetch func(ctx context.Context) (*keySet, error)

	set     atomic.Pointer[keySet]    // nil until the first success
	fetched atomic.Pointer[time.Time] // time of the last success; nil before it
	waiters atomic.Int32
	wanted  chan struct{}

	mu             sync.Mutex
	started, ended int           // attempts
	err            error         // of the last attempt
	next           chan struct{} // closed when an attempt ends
}

// openKeys starts to fetch the keys of an issuer, until ctx ends.
func openKeys(ctx context.Context, issuer string, client *http.Client, log *slog.Logger) *issuerKeys {
	k := &issuerKeys{issuer: issuer, client: client, log: log}
	k.fetch = k.fetchOnce
	k.start(ctx)
	return k
}

// openClusterKeys starts to fetch the key set of an API server, until ctx ends.
func openClusterKeys(ctx context.Context, read func(context.Context) ([]byte, error), log *slog.Logger) *issuerKeys {
	k := &issuerKeys{issuer: accountsName, log: log}
	k.fetch = func(ctx context.Context) (*keySet, error) {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		raw, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return parseKeys(raw)
	}
	k.start(ctx)
	return k
}

func (k *issuerKeys) start(ctx context.Context) {
	k.wanted, k.next = make(chan struct{}, 1), make(chan struct{})
	go k.run(ctx)
}

// current returns the keys, or nil if there are none that still count.
func (k *issuerKeys) current() *keySet {
	if at := k.fetched.Load(); at == nil || time.Since(*at) > maxKeyAge {
		return nil
	}
	return k.set.Load()
}

// refresh waits for a fetch that begins after the call, and returns its error.
func (k *issuerKeys) refresh(ctx context.Context) error {
	defer k.waiters.Add(-1)
	if k.waiters.Add(1) > maxKeyWaiters {
		return errors.New("too many calls wait for the issuer's keys")
	}
	k.mu.Lock()
	mine := k.started + 1
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	for {
		k.mu.Lock()
		ended, err, next := k.ended, k.err, k.next
		k.mu.Unlock()
		if ended >= mine {
			return err
		}
		select {
		case k.wanted <- struct{}{}:
		default:
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (k *issuerKeys) run(ctx context.Context) {
	failures := 0
	for {
		k.mu.Lock()
		k.started++
		k.mu.Unlock()
		err := k.attempt(ctx)
		k.mu.Lock()
		k.ended, k.err = k.started, err
		close(k.next)
		k.next = make(chan struct{})
		k.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		pause := refreshInterval
		if err == nil {
			failures = 0
		} else {
			failures++
			pause = min(minFetchInterval<<min(failures, 10), maxFetchInterval)
		}
		pause -= rand.N(pause / 4)
		if !k.pause(ctx, min(minFetchInterval, pause), nil) || !k.pause(ctx, pause-min(minFetchInterval, pause), k.wanted) {
			return
		}
	}
}

// pause waits for d or for until, and returns false if ctx ends first.
func (k *issuerKeys) pause(ctx context.Context, d time.Duration, until <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-until:
	case <-ctx.Done():
		return false
	}
	return true
}

// attempt fetches the keys once.
func (k *issuerKeys) attempt(ctx context.Context) error {
	set, err := k.fetch(ctx)
	if err != nil {
		if ctx.Err() == nil {
			k.log.WarnContext(ctx, "an issuer's keys cannot be fetched; those fetched before count for a day",
				"issuer", k.issuer, "error", err)
		}
		return err
	}
	if old := k.set.Load(); old == nil || old.sum != set.sum {
		k.set.Store(set)
		k.log.InfoContext(ctx, "an issuer's keys were fetched", "issuer", k.issuer, "keys", len(set.keys))
	}
	now := time.Now()
	k.fetched.Store(&now)
	return nil
}

// fetchOnce reads the issuer's metadata and the key set that it names.
func (k *issuerKeys) fetchOnce(ctx context.Context) (*keySet, error) {
	raw, err := k.get(ctx, strings.TrimSuffix(k.issuer, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return nil, err
	}
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(raw, &metadata); err != nil {
		return nil, fmt.Errorf("the issuer's metadata: %w", err)
	}
	if metadata.Issuer != k.issuer {
		return nil, fmt.Errorf("the metadata is of the issuer %q", metadata.Issuer)
	}
	if err := checkIssuerURL(metadata.Keys); err != nil {
		return nil, fmt.Errorf("jwks_uri: %w", err)
	}
	if raw, err = k.get(ctx, metadata.Keys); err != nil {
		return nil, err
	}
	return parseKeys(raw)
}

func (k *issuerKeys) get(ctx context.Context, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", from, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(raw) > maxDocument {
		err = fmt.Errorf("%s is larger than %d bytes", from, maxDocument)
	}
	return raw, err
}

// parseKeys returns the public keys for signatures in a key set. It skips others,
// and those of unknown types.
func parseKeys(raw []byte) (*keySet, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, fmt.Errorf("the key set: %w", err)
	}
	set := &keySet{sum: sha256.Sum256(raw)}
	for _, one := range document.Keys {
		var key jose.JSONWebKey
		if err := json.Unmarshal(one, &key); err == nil && usable(key) {
			set.keys = append(set.keys, key)
		}
	}
	switch {
	case len(set.keys) == 0:
		return nil, errors.New("the key set has no public key for signatures")
	case len(set.keys) > maxKeys:
		return nil, fmt.Errorf("the key set has more than %d keys", maxKeys)
	}
	return set, nil
}

func usable(key jose.JSONWebKey) bool {
	if !key.Valid() || (key.Use != "" && key.Use != "sig") {
		return false
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		bits := public.N.BitLen()
		return minRSABits <= bits && bits <= maxRSABits
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	default: // a private or symmetric key
		return false
	}
}

// checkIssuerURL returns an error unless the URL is https, or on this machine's
// loopback interface.
func checkIssuerURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return err
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q is not a URL of a host and path alone", text)
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1"):
		return nil
	default:
		return fmt.Errorf("%q must begin with https://", text)
	}
}
