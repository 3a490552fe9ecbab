package authn

import (
	"crypto/sha256"
	"sync"
)

// cacheSize bounds the tokens that a cache remembers. An entry takes less than
// 1 KiB.
const cacheSize = 8_192

// tokenHash stands for a token, so that no cache holds one.
type tokenHash [sha256.Size]byte

// cache remembers what is known of the tokens used last: at least half of
// cacheSize, at most all of it. It is safe for concurrent use.
type cache[V any] struct {
	mu sync.Mutex
	// young takes new entries. When it holds half of cacheSize, it becomes old.
	young, old map[tokenHash]V
}

func newCache[V any]() *cache[V] { return &cache[V]{young: make(map[tokenHash]V)} }

func (c *cache[V]) get(key tokenHash) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.young[key]
	if !ok {
		if v, ok = c.old[key]; ok {
			c.add(key, v)
		}
	}
	return v, ok
}

func (c *cache[V]) put(key tokenHash, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(key, v)
}

// add stores an entry. The caller holds mu.
func (c *cache[V]) add(key tokenHash, v V) {
	if len(c.young) >= cacheSize/2 {
		c.old, c.young = c.young, make(map[tokenHash]V)
	}
	c.young[key] = v
}
