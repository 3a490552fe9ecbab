package streaming

import "sync/atomic"

// Budget bounds the memory that many logs take together. A log that finds it
// used up keeps only its newest block in memory and spills the rest at once;
// a log without a spill directory keeps less. The zero value is unlimited.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used returns the bytes that logs hold in memory now.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

func (b *Budget) add(n int) {
	if b != nil {
		b.used.Add(int64(n))
	}
}

func (b *Budget) exhausted() bool {
	return b != nil && b.limit > 0 && b.used.Load() > b.limit
}
