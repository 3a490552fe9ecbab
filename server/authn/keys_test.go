package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// While keys rotate, no valid token is refused, and one of a withdrawn key is.
func TestKeysRotateUnderLoad(t *testing.T) {
	t.Parallel()
	i := newTestIssuer(t)
	o := i.open(nil)
	withdrawn := i.token(nil)
	if _, err := ask(t.Context(), o, withdrawn); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	for n := range 8 {
		load.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := ask(t.Context(), o, i.token(map[string]any{"jti": fmt.Sprint(n, k)})); err != nil {
					t.Errorf("a valid token: %v", err)
					return
				}
			}
		})
	}
	for range 2 {
		i.rotate(false)
		if _, err := ask(t.Context(), o, i.token(nil)); err != nil {
			t.Errorf("a token of the new key: %v", err)
		}
	}
	close(stop)
	load.Wait()
	i.rotate(true)
	if _, err := ask(t.Context(), o, i.token(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t.Context(), o, withdrawn); !errors.Is(err, ErrUnknownCredentials) {
		t.Fatalf("a token of a withdrawn key: %v", err)
	}
}

// Keys count for a day while the issuer does not answer, and a withdrawn key counts
// for no longer than the interval of fetches.
func TestKeysOutliveTheirIssuerForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var fail atomic.Bool
		var sets, attempts atomic.Int32
		k := &issuerKeys{issuer: "x", log: slog.New(slog.DiscardHandler), fetch: func(context.Context) (*keySet, error) {
			attempts.Add(1)
			if fail.Load() {
				return nil, errors.New("down")
			}
			return &keySet{sum: [32]byte{byte(sets.Add(1))}}, nil
		}}
		k.start(ctx)
		synctest.Wait()
		first := k.current()
		if first == nil {
			t.Fatal("no keys")
		}
		time.Sleep(refreshInterval)
		synctest.Wait()
		if k.current() == first {
			t.Fatal("the keys were not fetched again")
		}
		fail.Store(true)
		at := time.Now()
		time.Sleep(maxKeyAge - refreshInterval)
		if k.current() == nil {
			t.Fatal("the keys do not count while the issuer is down")
		}
		time.Sleep(refreshInterval + time.Second)
		if k.current() != nil {
			t.Fatal("the keys count for ever")
		}
		if most := int(time.Since(at)/(maxFetchInterval*3/4)) + 10; int(attempts.Load()) > most {
			t.Fatalf("%d attempts, want at most %d", attempts.Load(), most)
		}
	})
}

func TestParseKeys(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	document := func(keys ...jose.JSONWebKey) []byte {
		raw, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	good := jose.JSONWebKey{Key: ec.Public(), KeyID: "a"}
	many := make([]jose.JSONWebKey, maxKeys+1)
	for i := range many {
		many[i] = good
	}
	for name, c := range map[string]struct {
		raw  []byte
		want int
	}{
		"good":       {document(good), 1},
		"beside bad": {document(good, jose.JSONWebKey{Key: []byte("x")}), 1},
		"unknown":    {[]byte(`{"keys": [{"kty": "NEW"}, ` + string(document(good)[len(`{"keys":[`):])), 1},
		"small":      {document(jose.JSONWebKey{Key: small.Public()}), 0},
		"private":    {document(jose.JSONWebKey{Key: ec}), 0},
		"symmetric":  {document(jose.JSONWebKey{Key: []byte("x")}), 0},
		"encryption": {document(jose.JSONWebKey{Key: ec.Public(), Use: "enc"}), 0},
		"many":       {document(many...), 0},
		"none":       {[]byte(`{}`), 0},
		"no JSON":    {[]byte(`x`), 0},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := parseKeys(c.raw)
			if (err == nil) != (c.want > 0) || err == nil && len(set.keys) != c.want {
				t.Fatalf("got %v %v", set, err)
			}
		})
	}
}
