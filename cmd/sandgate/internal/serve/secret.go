package serve

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	specSecretBytes = 32
	minSpecSecret   = 16
)

// specSecret returns the salt of the stored hashes of environment values. Servers whose
// provider keeps its records in the state directory share that directory, so the secret
// is created there. Others share only their configuration: without a file there is no
// secret.
func (c config) specSecret() ([]byte, error) {
	path := c.SpecSecretFile
	if path == "" {
		if kind, err := c.kind(); err != nil || !kind.ownRecords {
			return nil, err
		}
		path = filepath.Join(c.StateDir, "spec-secret")
		if err := makeSecret(path); err != nil {
			return nil, fmt.Errorf("spec secret: %w", err)
		}
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("spec secret: %w", err)
	}
	if err := checkSecret(path, secret); err != nil {
		return nil, fmt.Errorf("spec secret: %w", err)
	}
	return secret, nil
}

func checkSecret(path string, secret []byte) error {
	if len(secret) < minSpecSecret {
		return fmt.Errorf("%s must hold at least %d bytes", path, minSpecSecret)
	}
	return nil
}

// makeSecret creates a file with random bytes, unless it exists. If two servers do so
// at once, both use the same one.
func makeSecret(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret := make([]byte, specSecretBytes)
	rand.Read(secret)                                               // never fails
	file, err := os.CreateTemp(filepath.Dir(path), ".spec-secret-") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.Write(secret)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
