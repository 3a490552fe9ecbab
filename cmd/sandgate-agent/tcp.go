package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/streaming/sealed"
)

// secretVariable is the environment variable with the secret of the TCP listener.
const secretVariable = "SANDGATE_AGENT_SECRET"

// takeSecret removes the secret from the environment, so that no command
// inherits it.
func takeSecret() string {
	secret := os.Getenv(secretVariable)
	_ = os.Unsetenv(secretVariable)
	return secret
}

// listenTCP listens on TCP for peers that know the secret.
func listenTCP(address, secret string) (net.Listener, error) {
	if secret == "" {
		return nil, fmt.Errorf("--listen-tcp %s: a secret in %s is required", address, secretVariable)
	}
	s, err := sealed.ParseSecret(secret)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", secretVariable, err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return sealed.NewListener(l, s)
}

// conceal keeps other programs of this user from reading this program's environment and
// input. It may be a moment late, but the secret gives access only to the agent of the
// same sandbox.
func conceal() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

var errNoSecret = errors.New("no secret came on standard input")

// readSecret reads a secret and not a byte more: the sender may be unable to close the
// input.
func readSecret(in io.Reader, wait time.Duration) (string, error) {
	type result struct {
		text string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		text := make([]byte, sealed.TextSize)
		_, err := io.ReadFull(in, text)
		read <- result{string(text), err}
	}()
	select {
	case r := <-read:
		if r.err != nil {
			return "", fmt.Errorf("%w: %w", errNoSecret, r.err)
		}
		_, err := sealed.ParseSecret(r.text)
		return r.text, err
	case <-time.After(wait):
		return "", errNoSecret
	}
}
