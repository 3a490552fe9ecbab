package sshserver

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/sandgate/sandgate/server/reload"
)

// Keys are the public keys that may log in.
type Keys struct{ file *reload.Files[[]entry] }

// entry is one line of the file.
type entry struct {
	key []byte // as in the protocol
	// sandboxes are ids, or beginnings of ids with "*" at the end. Nil: all.
	sandboxes []string
	// tokenFile holds the token of the calls. Empty: the credentials of this program.
	tokenFile string
}

// OpenKeys reads a file in the format of OpenSSH's authorized_keys, and reads it again
// when it changes. While the new content has a mistake, the former one stays in force.
func OpenKeys(log *slog.Logger, path string) (*Keys, error) {
	file, err := reload.Open(log, func(contents [][]byte) ([]entry, error) { return parseKeys(contents[0]) }, path)
	if err != nil {
		return nil, fmt.Errorf("authorized keys: %w", err)
	}
	return &Keys{file}, nil
}

// find returns the first entry of a key that may use a sandbox.
func (k *Keys) find(key ssh.PublicKey, sandbox string) (entry, bool) {
	wire := key.Marshal()
	for _, e := range k.file.Get() {
		if bytes.Equal(e.key, wire) && e.allows(sandbox) {
			return e, true
		}
	}
	return entry{}, false
}

func (e entry) allows(sandbox string) bool {
	if e.sandboxes == nil {
		return true
	}
	for _, pattern := range e.sandboxes {
		prefix, open := strings.CutSuffix(pattern, "*")
		if sandbox == pattern || open && strings.HasPrefix(sandbox, prefix) {
			return true
		}
	}
	return false
}

// parseKeys parses the whole file. Unlike OpenSSH it rejects a file with a line that it
// does not understand: a restriction must not get lost.
func parseKeys(content []byte) ([]entry, error) {
	var entries []entry
	number := 0
	for line := range bytes.Lines(content) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		e, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func parseKey(line []byte) (entry, error) {
	key, _, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		return entry{}, errors.New("it is not [OPTIONS] TYPE KEY [COMMENT], with a public key of OpenSSH")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return entry{}, errors.New("certificates are not supported; list the key itself")
	}
	e := entry{key: key.Marshal()}
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		if value, err = unquote(value); err != nil {
			return entry{}, fmt.Errorf("the option %s: %w", name, err)
		}
		switch strings.ToLower(name) {
		case "sandboxes":
			err = e.bind(value)
		case "token-file":
			if e.tokenFile = value; !filepath.IsAbs(value) {
				err = errors.New("it needs an absolute path")
			}
		case "no-agent-forwarding", "no-x11-forwarding", "no-user-rc":
			// There is none of this to forbid.
		default:
			err = errors.New(`it is not supported; supported are sandboxes="ID,PREFIX*" and token-file="/PATH"`)
		}
		if err != nil {
			return entry{}, fmt.Errorf("the option %s: %w", name, err)
		}
	}
	return e, nil
}

// bind narrows an entry to sandboxes. Of several such options all count.
func (e *entry) bind(list string) error {
	for pattern := range strings.SplitSeq(list, ",") {
		if strings.TrimSuffix(pattern, "*") == "" || strings.Contains(strings.TrimSuffix(pattern, "*"), "*") {
			return fmt.Errorf("%q is neither an id nor the beginning of one with * at its end", pattern)
		}
		e.sandboxes = append(e.sandboxes, pattern)
	}
	return nil
}

// unquote returns the value of an option, in which \" stands for a quote.
func unquote(value string) (string, error) {
	if value == "" {
		return "", nil
	}
	inner, opened := strings.CutPrefix(value, `"`)
	inner, closed := strings.CutSuffix(inner, `"`)
	if !opened || !closed {
		return "", errors.New("its value needs quotes")
	}
	return strings.ReplaceAll(inner, `\"`, `"`), nil
}
