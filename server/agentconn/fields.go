package agentconn

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// MaxFields bounds the fields of a message, including those of its messages.
	// Two bytes on the wire can become a message of a hundred in memory, so the
	// size of a message does not bound the cost of decoding it: 131 072 fields
	// decode to about 10 MiB. An argv at the kernel's limit of 2 MiB and a reply
	// with 10 000 matches stay below.
	MaxFields = 128 << 10
	// maxNesting bounds messages within messages. A level of JSON in a
	// google.protobuf.Struct takes four.
	maxNesting = 128
)

// ErrTooManyFields rejects a message that would need too much memory.
var ErrTooManyFields = fmt.Errorf("more than %d fields, or nested deeper than %d", MaxFields, maxNesting)

// countFields counts the fields of an encoded message before anything is
// allocated for them. It returns ErrTooManyFields beyond the bounds, and
// errFrame for an invalid message.
func countFields(data mem.BufferSlice, d protoreflect.MessageDescriptor) (int, error) {
	type level struct {
		end int // c.left at the message's end
		d   protoreflect.MessageDescriptor
	}
	c := newCursor(data)
	count, groups := 0, 0
	stack := []level{{0, d}}
	for {
		top := stack[len(stack)-1]
		if c.left < top.end {
			return count, fmt.Errorf("%w: a field longer than its message", errFrame)
		}
		if c.left == top.end {
			if stack = stack[:len(stack)-1]; len(stack) == 0 {
				return count, nil
			}
			continue
		}
		num, typ, err := c.tag()
		if err != nil {
			return count, err
		}
		var f protoreflect.FieldDescriptor
		if groups == 0 {
			f = top.d.Fields().ByNumber(num)
		}
		count++
		switch typ {
		case protowire.VarintType:
			_, err = c.varint()
		case protowire.Fixed32Type:
			c.skip(4)
		case protowire.Fixed64Type:
			c.skip(8)
		case protowire.BytesType:
			var n int
			if n, err = c.length(); err != nil {
				break
			}
			switch {
			case f != nil && f.Message() != nil:
				stack = append(stack, level{c.left - n, f.Message()})
				n = 0
			case f != nil && f.IsList() && f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind:
				count += n // packed: an element takes at least a byte
			}
			c.skip(n)
		case protowire.StartGroupType:
			// No message here has groups, so their content is unknown fields.
			groups++
		case protowire.EndGroupType:
			groups--
		default:
			err = fmt.Errorf("%w: wire type %d", errFrame, typ)
		}
		if err != nil {
			return count, err
		}
		if count > MaxFields || len(stack)+groups > maxNesting {
			return count, ErrTooManyFields
		}
	}
}
