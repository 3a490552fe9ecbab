package sshserver

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/crypto/ssh"
)

// HostKey reads the server's private key from a file. If there is none, it makes an
// Ed25519 key, which only the file's owner can read.
func HostKey(path string) (ssh.Signer, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeHostKey(path); err != nil {
			return nil, fmt.Errorf("make the host key: %w", err)
		}
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	if runtime.GOOS != "windows" && info.Mode()&0o077 != 0 {
		return nil, fmt.Errorf("host key: others can use %s, its mode is %04o; run: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("host key: %s holds no private key without a passphrase: %w", path, err)
	}
	return signer, nil
}

// makeHostKey writes a key beside the path and links it there, so that of two servers
// that start at once both use the key of the first.
func makeHostKey(path string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "sandgate ssh-server")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".host-key-*") // has the mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(pem.EncodeToMemory(block))
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		if err = os.Link(file.Name(), path); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return errors.Join(err, os.Remove(file.Name()))
}
