package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rlimits is a flag that lowers limits of this process, and so of its commands. The
// runtime can't do that in a user namespace without CAP_SYS_RESOURCE. A value is
// RESOURCE=LIMIT, both numbers.
type rlimits struct{}

func (rlimits) String() string { return "" }

// Set implements flag.Value.
func (rlimits) Set(v string) error {
	name, value, _ := strings.Cut(v, "=")
	resource, err1 := strconv.Atoi(name)
	limit, err2 := strconv.ParseUint(value, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("set limit %d: %w", resource, err)
	}
	return nil
}
