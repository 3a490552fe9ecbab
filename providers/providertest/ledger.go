package providertest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

// ledgerLosesNoChange changes one document through two providers at once.
func ledgerLosesNoChange(ctx context.Context, t *testing.T, b *box) {
	const changes = 10
	other := b.h.Open(t)
	defer func() {
		if err := other.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	const name = "providertest"
	both := []providers.Ledger{ledgerOf(t, b.p), ledgerOf(t, other)}
	// The substrate may have the document of an earlier run.
	if err := both[0].ChangeLedger(ctx, name, func([]byte) ([]byte, error) { return []byte("0"), nil }); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for i := range 2 * changes {
		work.Go(func() {
			err := both[i%2].ChangeLedger(ctx, name, func(old []byte) ([]byte, error) {
				n, err := strconv.Atoi(string(old))
				return strconv.AppendInt(nil, int64(n+1), 10), err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	read := func(ctx context.Context, l providers.Ledger, result []byte, failure error) (got []byte, err error) {
		err = l.ChangeLedger(ctx, name, func(old []byte) ([]byte, error) {
			got = bytes.Clone(old)
			return result, failure
		})
		return got, err
	}
	why := errors.New("refused")
	if _, err := read(ctx, both[0], []byte("lost"), why); !errors.Is(err, why) {
		t.Errorf("the function's error: %v", err)
	}
	for range 2 { // A nil result changes nothing.
		if got, err := read(ctx, both[1], nil, nil); err != nil || string(got) != strconv.Itoa(2*changes) {
			t.Errorf("after %d changes: %q, %v", 2*changes, got, err)
		}
	}
	ended, cancel := context.WithCancelCause(ctx)
	cancel(why)
	if _, err := read(ended, both[0], []byte("0"), nil); !errors.Is(err, why) {
		t.Errorf("with an ended context: %v", err)
	}
}

func ledgerOf(t *testing.T, p providers.Provider) providers.Ledger {
	t.Helper()
	l, ok := p.(providers.Ledger)
	if !ok {
		t.Fatalf("%T keeps no ledger", p)
	}
	return l
}
