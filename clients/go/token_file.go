package sandgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
)

// maxTokenFile is the largest size of a token file in bytes.
const maxTokenFile = 64 << 10

// tokenFile is a token source that reads a file before each attempt.
type tokenFile struct {
	path string
	mu   sync.Mutex
	last string // the last token that was read
}

// token returns the file's token. While the file is being replaced, it may be missing
// or empty: token then returns the last one that was read.
func (f *tokenFile) token(context.Context) (string, error) {
	token, err := readToken(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.last = token
	case f.last == "":
		return "", local(ErrAuthentication, codes.Unauthenticated, err, "the token file %s cannot be used: %v", f.path, err)
	}
	return f.last, nil
}

func readToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", errors.Unwrap(err) // without the path
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	if err != nil {
		return "", errors.Unwrap(err)
	}
	token := strings.TrimSpace(string(raw))
	switch {
	case len(raw) > maxTokenFile:
		return "", fmt.Errorf("it has more than %d bytes", maxTokenFile)
	case token == "":
		return "", errors.New("it is empty")
	}
	return token, nil
}
