package policy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// specHash identifies a request as sent, without its labels and lifetimes. It
// hashes fields in the order of their numbers and map entries in the order of
// their keys, so it does not depend on a library's version. A field that a later
// version adds changes the hash only if it is set. Environment values enter as
// keyed hashes, so that the stored hashes of two sandboxes do not reveal that
// their secrets are equal.
func specHash(secret []byte, tenant, id, template string, req *sandboxv1.CreateSandboxRequest) string {
	salt := hmac.New(sha256.New, secret)
	salt.Write([]byte("sandgate env\x00" + tenant + "\x00" + id))
	c := canonicalHasher{h: sha256.New(), salt: salt.Sum(nil)}
	c.text(template)
	c.message(req.GetSpec().ProtoReflect())
	if req.GetProviderOptions() != nil {
		c.message(req.GetProviderOptions().ProtoReflect())
	}
	return hex.EncodeToString(c.h.Sum(nil)[:20])
}

// canonicalHasher hashes messages in one canonical encoding.
type canonicalHasher struct {
	h    hash.Hash
	salt []byte
}

func (c canonicalHasher) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	c.h.Write(b[:])
}

func (c canonicalHasher) text(s string) {
	c.number(uint64(len(s)))
	c.h.Write([]byte(s))
}

func (c canonicalHasher) message(m protoreflect.Message) {
	type set struct {
		fd protoreflect.FieldDescriptor
		v  protoreflect.Value
	}
	var fields []set
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields = append(fields, set{fd, v})
		return true
	})
	slices.SortFunc(fields, func(a, b set) int { return int(a.fd.Number()) - int(b.fd.Number()) })
	c.number(uint64(len(fields)))
	for _, f := range fields {
		c.number(uint64(f.fd.Number()))
		switch {
		case f.fd.IsMap():
			c.mapping(f.fd, f.v.Map())
		case f.fd.IsList():
			list := f.v.List()
			c.number(uint64(list.Len()))
			for i := range list.Len() {
				c.value(list.Get(i))
			}
		default:
			c.value(f.v)
		}
	}
}

func (c canonicalHasher) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	keys := make([]string, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.SortFunc(keys, strings.Compare)
	secret := fd.FullName() == "sandbox.v1.SandboxSpec.env"
	c.number(uint64(len(keys)))
	for _, k := range keys {
		c.text(k)
		v := m.Get(protoreflect.ValueOfString(k).MapKey())
		if secret {
			mac := hmac.New(sha256.New, c.salt)
			mac.Write([]byte(v.String()))
			c.h.Write(mac.Sum(nil))
			continue
		}
		c.value(v)
	}
}

func (c canonicalHasher) value(v protoreflect.Value) {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		c.message(x)
	case string:
		c.text(x)
	case []byte:
		c.text(string(x))
	case bool:
		if x {
			c.number(1)
		} else {
			c.number(0)
		}
	case protoreflect.EnumNumber:
		c.number(uint64(x))
	case float64:
		c.number(math.Float64bits(x))
	case float32:
		c.number(uint64(math.Float32bits(x)))
	case uint32, uint64:
		c.number(v.Uint())
	default:
		c.number(uint64(v.Int()))
	}
}
