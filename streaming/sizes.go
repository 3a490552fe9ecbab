package streaming

// Payload sizes of one message. grpc-go takes receive buffers from tiers of 256 B,
// 4 KiB, 16 KiB, 32 KiB and 1 MiB. A payload of exactly 32 KiB plus its header takes a
// buffer of 1 MiB, which halves the throughput. So a payload is either at most 32 000
// bytes or large.
const (
	// LargeChunk is the payload size to use when there is much to send, and the largest
	// that a server takes from a caller in one message of an Upload or Forward.
	LargeChunk = 256 << 10

	// MaxChunk is the largest payload that a peer must accept in any other message.
	MaxChunk = 1 << 20
)
