package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sandgate/sandgate/providers"
)

// ErrCorrupt is the error of a record that the machine was writing when it went down.
// Nothing of the sandbox can run then.
var ErrCorrupt = errors.New("the sandbox's record cannot be read")

// Read returns the record in a file. The error wraps providers.ErrNotFound if there is
// no file, and ErrCorrupt if it holds no record.
func Read[T any](path string) (*T, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sandbox: %w", providers.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	r := new(T)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, errors.Join(ErrCorrupt, err))
	}
	return r, nil
}
