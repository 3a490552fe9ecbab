package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"sigs.k8s.io/yaml"
)

// TokenPrefix begins every token, so that scanners for leaked secrets can find
// one.
const TokenPrefix = "sgt_"

// reloadInterval is how often the file's time is looked at.
const reloadInterval = time.Second

// Entry is one line of the tokens file. Tokens have 256 random bits, so a
// plain SHA-256 keeps them secret.
type Entry struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	SHA256 string `json:"sha256"` // of the whole token, 64 hexadecimal digits
}

// NewToken makes a token and the entry for the file.
func NewToken(name, tenant string) (string, Entry, error) {
	var b [32]byte
	rand.Read(b[:]) // never fails
	token := TokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	hash := sha256.Sum256([]byte(token))
	e := Entry{Name: name, Tenant: tenant, SHA256: hex.EncodeToString(hash[:])}
	if _, _, err := e.parse(); err != nil {
		return "", Entry{}, err
	}
	return token, e, nil
}

func (e Entry) parse() ([sha256.Size]byte, Principal, error) {
	var hash [sha256.Size]byte
	if e.Name == "" || e.Tenant == "" {
		return hash, Principal{}, errors.New("name and tenant must be given")
	}
	raw, err := hex.DecodeString(e.SHA256)
	if err != nil || len(raw) != sha256.Size {
		return hash, Principal{}, fmt.Errorf("token %q: sha256 must be 64 hexadecimal digits", e.Name)
	}
	copy(hash[:], raw)
	return hash, Principal{Name: e.Name, Tenant: e.Tenant}, nil
}

// Tokens authenticates bearer tokens by a file of hashed ones:
//
//	tokens:
//	  - {name: ci, tenant: build, sha256: 5e88…}
//
// The file is read again when it changes; while the new content is not valid,
// the old one counts.
type Tokens struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	checked time.Time
	changed time.Time
	size    int64
	known   map[[sha256.Size]byte]Principal
}

var _ Authenticator = (*Tokens)(nil)

// OpenTokens reads the file.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{path: path, log: log}
	if err := t.load(); err != nil {
		return nil, err
	}
	t.checked = time.Now()
	return t, nil
}

// Name implements Authenticator.
func (t *Tokens) Name() string { return "tokens" }

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(ctx context.Context) (Principal, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) == 0 {
		return Principal{}, ErrNoCredentials
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "bearer") {
		return Principal{}, fmt.Errorf("%w: the authorization must be one bearer token", ErrUnknownCredentials)
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(token)))
	// The table is keyed by the hash: how long a look-up takes depends on bits
	// that a caller cannot steer towards a known hash.
	if p, ok := t.current()[hash]; ok {
		return p, nil
	}
	return Principal{}, fmt.Errorf("%w: the token is not known", ErrUnknownCredentials)
}

func (t *Tokens) current() map[[sha256.Size]byte]Principal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.checked) >= reloadInterval {
		t.checked = now
		if err := t.load(); err != nil {
			t.log.Error("tokens file could not be read again; the old tokens count", "file", t.path, "error", err)
		}
	}
	return t.known
}

// load reads the file if it changed.
func (t *Tokens) load() error {
	info, err := os.Stat(t.path)
	if err != nil {
		return fmt.Errorf("tokens file: %w", err)
	}
	if t.known != nil && info.ModTime().Equal(t.changed) && info.Size() == t.size {
		return nil
	}
	t.changed, t.size = info.ModTime(), info.Size()
	raw, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("tokens file: %w", err)
	}
	known, err := parseTokens(raw)
	if err != nil {
		return fmt.Errorf("tokens file %s: %w", t.path, err)
	}
	t.known = known
	return nil
}

func parseTokens(raw []byte) (map[[sha256.Size]byte]Principal, error) {
	var file struct {
		Tokens []Entry `json:"tokens"`
	}
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return nil, err
	}
	known := make(map[[sha256.Size]byte]Principal, len(file.Tokens))
	for _, e := range file.Tokens {
		hash, p, err := e.parse()
		if err != nil {
			return nil, err
		}
		if other, ok := known[hash]; ok && other != p {
			return nil, fmt.Errorf("tokens %q and %q have the same hash", other.Name, p.Name)
		}
		known[hash] = p
	}
	return known, nil
}
