package conformance

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Case is one case of a [Suite].
type Case struct {
	// Name begins with the contract, such as "C07_cut_mid_chunk_client_hop".
	Name string
	// Long is true for a case that takes a minute, because it waits for timeouts
	// that cannot be shortened from outside.
	Long bool
	// Group is "programs" for the cases of ordinary programs, "network" for those of
	// the network mode PROXY, and empty for others.
	Group string
	// Programs are shell commands, each of which succeeds where a program that the
	// case needs is usable. Where one fails, the case is skipped.
	Programs []string

	needs []string // protections that the server must enforce
	proxy bool     // needs the network mode PROXY
	hook  bool     // needs Options.CutInner
	run   func(context.Context, T, *Suite)
}

// Contract is the number in docs/contracts.md.
func (c Case) Contract() int {
	n, _ := strconv.Atoi(strings.TrimLeft(c.Name[1:3], "0"))
	return n
}

// Title is the name for people, such as "C7 cut mid chunk, client hop".
func (c Case) Title() string {
	text := strings.ReplaceAll(c.Name[4:], "_", " ")
	for _, hop := range []string{" client hop", " inner hop"} {
		if before, ok := strings.CutSuffix(text, hop); ok {
			text = before + "," + hop
		}
	}
	return fmt.Sprintf("C%d %s", c.Contract(), text)
}

// Cases returns all cases, by contract.
func Cases() []Case {
	var all []Case
	for _, c := range SandboxCases() {
		all = append(all, Case{Name: c.Name, Group: c.Group, Programs: c.Programs, needs: c.needs, run: func(ctx context.Context, t T, s *Suite) {
			t.Helper()
			c.Run(ctx, t, s.target(ctx, t, c.Limits))
		}})
	}
	for _, group := range [][]Case{
		startCases, timeoutCases, streamCases, joinCases, callerCases, readerCases, stdinCases, signalCases,
		fileCases, lifecycleCases, cutCases(), cutFileCases(), forwardEndCases,
		networkCases, bypassCases, interceptCases,
	} {
		all = append(all, group...)
	}
	slices.SortStableFunc(all, func(a, b Case) int { return a.Contract() - b.Contract() })
	return all
}

// Filter chooses cases. The zero value chooses all but the long ones.
type Filter struct {
	// Pattern is a regular expression that name or title must match. "C9" alone
	// means contract 9, not 90. Empty: all.
	Pattern string
	// Group chooses the cases of one group. Empty: all.
	Group string
	// Fraction chooses that share of the cases, by Seed. 0 and 1: all.
	Fraction float64
	// Part and Parts choose part 1…Parts of the cases, shuffled by Seed, so that
	// all parts together are all cases. 0: all.
	Part, Parts int
	// Seed of the choice.
	Seed uint64
	// Long chooses the long ones, too.
	Long bool
}

var contractOnly = regexp.MustCompile(`^[Cc]0?([0-9]+)$`)

// Choose returns the cases that the filter means, in their order.
func (f Filter) Choose(cases []Case) ([]Case, error) {
	pattern := f.Pattern
	if m := contractOnly.FindStringSubmatch(pattern); m != nil {
		pattern = "^C" + m[1] + " "
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", f.Pattern, err)
	}
	if f.Fraction < 0 || f.Fraction > 1 {
		return nil, fmt.Errorf("the fraction %v is not between 0 and 1", f.Fraction)
	}
	if f.Parts < 0 || f.Part < 0 || f.Part > f.Parts || f.Parts > 0 && f.Part == 0 {
		return nil, fmt.Errorf("part %d of %d is none", f.Part, f.Parts)
	}
	cases = slices.DeleteFunc(slices.Clone(cases), func(c Case) bool {
		return c.Long && !f.Long || f.Group != "" && c.Group != f.Group || !re.MatchString(c.Name) && !re.MatchString(c.Title())
	})
	order := rand.New(rand.NewPCG(f.Seed, 0)).Perm(len(cases))
	keep := make([]bool, len(cases))
	for rank, i := range order {
		keep[i] = (f.Parts == 0 || rank%f.Parts == f.Part-1) &&
			(f.Fraction == 0 || float64(rank) < f.Fraction*float64(len(cases)))
	}
	var chosen []Case
	for i, c := range cases {
		if keep[i] {
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

// chance returns the case's own random numbers: the same for the same seed,
// whatever ran before.
func (s *Suite) chance(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // A hash never fails.
	return rand.New(rand.NewPCG(s.opts.Seed, h.Sum64()))
}
