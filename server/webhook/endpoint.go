// Package webhook sends the events of sandboxes to the receivers that an operator
// configures, by HTTP and signed as https://www.standardwebhooks.com defines it.
//
// Each event is sent at least once. One server sends, and stores how far it came on the
// substrate, so that the next one continues there.
package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/server/events"
)

// Endpoint is a receiver of events.
type Endpoint struct {
	// Name identifies the endpoint in metrics and logs, and its progress on the
	// substrate.
	Name string
	// URL takes the messages. It must be https, except for loopback addresses.
	URL string
	// PlainHTTP allows http for other addresses.
	PlainHTTP bool
	// SecretFile has the secrets that sign messages, one in a line: "whsec_" and 24 to
	// 64 bytes in base64. It is read for each attempt. With several secrets, a message
	// has a signature by each, so that the receiver can change from one to the next.
	SecretFile string
	// Types and Tenants select events. Empty: all.
	Types   []events.Type
	Tenants []string
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Check returns an error for endpoints that cannot be used. It reads no files.
func Check(list []Endpoint) error {
	names := make(map[string]bool)
	for i, e := range list {
		if !namePattern.MatchString(e.Name) {
			return fmt.Errorf("webhooks[%d]: name must be 1 to 63 characters of a-z, 0-9 and '-', beginning with a letter or digit", i)
		}
		if names[e.Name] {
			return fmt.Errorf("webhooks[%d]: there are two named %s", i, e.Name)
		}
		names[e.Name] = true
		if err := e.check(); err != nil {
			return fmt.Errorf("webhook %s: %w", e.Name, err)
		}
	}
	return nil
}

func (e Endpoint) check() error {
	u, err := url.Parse(e.URL)
	if err != nil {
		return errors.New("url is malformed")
	}
	switch {
	case u.Host == "" || u.Hostname() == "":
		return errors.New("url must be https://HOST[:PORT]/PATH")
	case u.User != nil:
		return errors.New("url must not hold credentials; the signature authenticates messages")
	case u.Scheme == "http" && !e.PlainHTTP && !loopback(u.Hostname()):
		return errors.New("url must be https; set plain_http to send events to this host without encryption")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("url must begin with https://")
	}
	for _, t := range e.Types {
		if !slices.Contains(events.Types(), t) {
			return fmt.Errorf("there is no type %q; types are %v", t, events.Types())
		}
	}
	if e.SecretFile == "" {
		return errors.New("secret_file is missing")
	}
	return nil
}

// CheckSecrets returns an error for endpoints whose secrets cannot be read.
func CheckSecrets(list []Endpoint) error {
	for _, e := range list {
		if _, err := e.secrets(); err != nil {
			return fmt.Errorf("webhook %s: %w", e.Name, err)
		}
	}
	return nil
}

// CheckSecretFile returns an error for what a secret file must not hold.
func CheckSecretFile(raw []byte) error {
	_, err := parseSecrets(raw)
	return err
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

const (
	secretPrefix               = "whsec_"
	minSecret, maxSecret       = 24, 64
	maxSecrets, maxSecretsFile = 4, 4 << 10
)

// secrets reads the secret file. The errors hold nothing of it.
func (e Endpoint) secrets() ([][]byte, error) {
	raw, err := os.ReadFile(e.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("secret_file: %w", err)
	}
	return parseSecrets(raw)
}

func parseSecrets(raw []byte) ([][]byte, error) {
	if len(raw) > maxSecretsFile {
		return nil, fmt.Errorf("secret_file is larger than %d bytes", maxSecretsFile)
	}
	var secrets [][]byte
	for line := range bytes.Lines(raw) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		encoded, ok := strings.CutPrefix(text, secretPrefix)
		secret, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(secret) < minSecret || len(secret) > maxSecret {
			return nil, fmt.Errorf("secret_file: each line must be %s and %d to %d bytes in base64", secretPrefix, minSecret, maxSecret)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 || len(secrets) > maxSecrets {
		return nil, fmt.Errorf("secret_file must have 1 to %d secrets", maxSecrets)
	}
	return secrets, nil
}

// sign returns the value of the header webhook-signature.
func sign(secrets [][]byte, id string, at time.Time, body []byte) string {
	signatures := make([]string, 0, len(secrets))
	for _, secret := range secrets {
		h := hmac.New(sha256.New, secret)
		_, _ = h.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + ".")) // never fails
		_, _ = h.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	}
	return strings.Join(signatures, " ")
}

func (e Endpoint) equal(other Endpoint) bool {
	return e.Name == other.Name && e.URL == other.URL && e.PlainHTTP == other.PlainHTTP && e.SecretFile == other.SecretFile &&
		slices.Equal(e.Types, other.Types) && slices.Equal(e.Tenants, other.Tenants)
}
