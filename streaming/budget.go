package streaming

import "sync/atomic"

// Budget bounds the memory of many logs together. When it is used up, a log keeps only
// its newest block in memory, and spills or evicts the rest. The zero value is
// unlimited.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

func (b *Budget) add(n int) {
	if b != nil {
		b.used.Add(int64(n))
	}
}

func (b *Budget) exhausted() bool {
	return b != nil && b.limit > 0 && b.used.Load() > b.limit
}
