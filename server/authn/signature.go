package authn

import (
	"fmt"
	"runtime"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/sandgate/sandgate/server/limit"
)

// signatureSlots bound the concurrent checks of signatures, so that a flood of
// forged tokens leaves processor time for calls whose token was checked before.
type signatureSlots struct{ limit.Slots }

func newSignatureSlots() signatureSlots {
	return signatureSlots{limit.New(max(1, runtime.GOMAXPROCS(0)/2))}
}

// checkSignature stores a token's claims if a key of set signed it. Otherwise the
// error is an ErrUnknownCredentials.
func (s signatureSlots) checkSignature(t *jwt.JSONWebToken, set *keySet, claims ...any) error {
	header := t.Headers[0]
	err := fmt.Errorf("%w: no key of the issuer has the token's id", ErrUnknownCredentials)
	for _, key := range set.candidates(header.KeyID) {
		if key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		s.Slots <- struct{}{}
		failure := t.Claims(key.Key, claims...)
		s.Release()
		if failure == nil {
			return nil
		}
		err = fmt.Errorf("%w: the signature is not the issuer's", ErrUnknownCredentials)
	}
	return err
}
