package quota

import "time"

// bucket is a token bucket. It holds one minute's number at most.
type bucket struct {
	Tokens float64   `json:"tokens"`
	At     time.Time `json:"at"` // when Tokens was right
}

// maxSkew is how far the clocks of servers may be apart.
const maxSkew = time.Minute

// filled returns the bucket as it is now. A nil bucket is a full one.
func (b *bucket) filled(perMinute int64, now time.Time) bucket {
	if b == nil {
		return bucket{float64(perMinute), now}
	}
	// Clocks of servers differ: one that is behind adds nothing.
	passed := max(now.Sub(b.At), 0)
	return bucket{min(b.Tokens+passed.Minutes()*float64(perMinute), float64(perMinute)), now}
}

// wait returns how long the next token takes; 0: there is one.
func (b bucket) wait(perMinute int64) time.Duration {
	if b.Tokens >= 1 {
		return 0
	}
	wait := time.Duration((1 - b.Tokens) / float64(perMinute) * float64(time.Minute))
	return max(wait.Round(time.Millisecond), time.Millisecond)
}

func (b bucket) exceeded(quota string, o Owner, perMinute int64) *Exceeded {
	return &Exceeded{
		Quota: quota, Owner: o, Limit: perMinute, Used: perMinute - int64(b.Tokens), Asked: 1, RetryAfter: b.wait(perMinute),
	}
}
