package streaming

// Sizes of what travels in one message. grpc-go takes receive buffers from
// tiers of 256 B, 4 KiB, 16 KiB, 32 KiB and 1 MiB. A payload of exactly
// 32 KiB grows past its tier by the few bytes of its own header and pays for
// a buffer of 1 MiB, which halves the throughput. So a chunk is either small
// enough for the 32 KiB tier with its header, or large enough to earn the
// next one.
const (
	// SmallChunk is the largest chunk that fits the 32 KiB tier with room
	// for message headers.
	SmallChunk = 32_000

	// LargeChunk is the size to use when there is much to send.
	LargeChunk = 256 << 10

	// MaxChunk is the largest payload that a peer must accept in one message.
	MaxChunk = 1 << 20
)

// ChunkSize returns how many of n waiting bytes to put into the next message:
// all of them when they fit one small chunk or lie between a large chunk and
// MaxChunk, otherwise the largest size that avoids the slow tier.
func ChunkSize(n int) int {
	switch {
	case n <= SmallChunk:
		return n
	case n < LargeChunk:
		return SmallChunk
	case n <= MaxChunk:
		return n
	default:
		return LargeChunk
	}
}
