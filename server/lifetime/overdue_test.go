package lifetime

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func TestBacklogShare(t *testing.T) {
	for n, want := range map[int]int{0: 0, 3: 3, 50: 10, 500: 50, 20_000: lateMost} {
		b := backlog{random: rand.New(rand.NewPCG(1, uint64(n))).IntN}
		for range n {
			b.add(providers.Info{})
		}
		if got := len(b.share(lateWait)); got != want {
			t.Errorf("of %d a round deletes %d, want %d", n, got, want)
		}
		if got := len(b.share(lateWait - 1)); got != 0 {
			t.Errorf("of %d a server that has just started deletes %d", n, got)
		}
	}
}

// Each of a backlog that is larger than the sample has its chance.
func TestLargeBacklogIsSampledFairly(t *testing.T) {
	b := backlog{random: rand.New(rand.NewPCG(1, 2)).IntN}
	for i := range 3 * lateMost {
		b.add(providers.Info{Name: fmt.Sprint(i)})
	}
	var thirds [3]int
	for _, info := range b.sample {
		i, err := strconv.Atoi(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		thirds[i/lateMost]++
	}
	for _, n := range thirds {
		if n < lateMost/4 {
			t.Errorf("the sample has %v of the thirds", thirds)
		}
	}
}
