package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	"github.com/sandgate/sandgate/conformance"
)

// conformanceRun holds the flags of conformance.
type conformanceRun struct {
	filter          conformance.Filter
	part            string
	list, verbose   bool
	scale           float64
	template        string
	goProgram       string
	upstream        string
	upstreamCert    string
	upstreamKey     string
	timeout, atMost time.Duration
}

func (c *cli) conformanceCommand() *cobra.Command {
	r := &conformanceRun{}
	cmd := &cobra.Command{
		Use:   "conformance [flags]",
		Short: "Test a server against the contracts",
		Long: `Run the conformance suite against a server: the promises of docs/contracts.md, as
cases over the public API. The suite creates sandboxes and deletes them again, even
after a failure or an interrupt. It prints one line per case: ok, FAIL with the
reasons below, or skip with the reason why the case does not apply.

The suite loads the server: by default it reads 1 GiB of output, runs 10 000
commands and 1 000 at once. --scale makes that less.

The exit code is 0 if all cases passed, 1 if a case failed or something was left
behind, and 125 if the server cannot be reached.`,
		Example: `  sandgate conformance --address unix:///run/sandgate.sock
  sandgate conformance --run C9                 the cases of contract 9
  sandgate conformance --group programs         ordinary programs: Python, Node, git, …
  sandgate conformance --fraction 0.2 --seed 7  a fifth of them, always the same
  sandgate conformance --part 1/3               a third; the parts are all
  sandgate conformance --list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.parse(cmd); err != nil {
				return err
			}
			cases, err := r.filter.Choose(conformance.Cases())
			if err != nil {
				return usage(cmd, "%v", err)
			}
			if len(cases) == 0 {
				return usage(cmd, "no case is chosen")
			}
			if r.list {
				return c.listCases(cases)
			}
			return c.conformance(cmd.Context(), r, cases)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&r.filter.Pattern, "run", "", "only cases whose name matches this regular expression; C9 is contract 9")
	flags.StringVar(&r.filter.Group, "group", "", `only cases of this group; "programs" are those of ordinary programs, "network" those of the network mode PROXY`)
	flags.BoolVar(&r.list, "list", false, "print the cases and run none")
	flags.BoolVar(&r.filter.Long, "long", false, "include the cases that take a minute each because they wait for timeouts")
	flags.Uint64Var(&r.filter.Seed, "seed", 0, "seed of everything random and of the choice of cases (default: a new one, which is printed)")
	flags.Float64Var(&r.filter.Fraction, "fraction", 1, "run this share of the cases, chosen by the seed")
	flags.StringVar(&r.part, "part", "", "run part K of N, as K/N: together the parts of a seed are all cases")
	flags.Float64Var(&r.scale, "scale", 1, "size of the large cases")
	flags.StringVar(&r.template, "template", "", "template of the sandboxes (default: the server's)")
	_ = cmd.RegisterFlagCompletionFunc("template", c.completeTemplate)
	flags.StringVar(&r.goProgram, "go-program", "", "static build of conformance/goprogram for the sandboxes' machine (default: the cases that run it are skipped)")
	flags.StringVar(&r.upstream, "upstream", "", "HOST:PORT on this machine that sandboxes of the template may connect to, and at which the suite listens (default: the cases that need it are skipped)")
	flags.StringVar(&r.upstreamCert, "upstream-cert", "", "file of a certificate for the upstream's name, as PEM, which the server must trust (default: the cases in which the server ends TLS are skipped)")
	flags.StringVar(&r.upstreamKey, "upstream-key", "", "file of the certificate's key, as PEM")
	flags.DurationVar(&r.timeout, "case-timeout", 5*time.Minute, "longest time for one case")
	flags.DurationVar(&r.atMost, "timeout", 0, "longest time for all of them (default: none)")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "print the notes of all cases, not only of failed ones")
	return cmd
}

func (r *conformanceRun) parse(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("seed") {
		r.filter.Seed = uint64(rand.Uint32())
	}
	if r.scale <= 0 {
		return usage(cmd, "--scale must be above 0")
	}
	if r.filter.Fraction <= 0 {
		return usage(cmd, "--fraction must be above 0 and at most 1")
	}
	if r.timeout <= 0 || r.atMost < 0 {
		return usage(cmd, "--timeout and --case-timeout must be above 0")
	}
	if (r.upstreamCert == "") != (r.upstreamKey == "") || r.upstreamCert != "" && r.upstream == "" {
		return usage(cmd, "--upstream-cert and --upstream-key go together, and with --upstream")
	}
	if r.part == "" {
		return nil
	}
	part, parts, found := strings.Cut(r.part, "/")
	var errs [2]error
	r.filter.Part, errs[0] = strconv.Atoi(part)
	r.filter.Parts, errs[1] = strconv.Atoi(parts)
	if !found || errors.Join(errs[:]...) != nil || r.filter.Part < 1 || r.filter.Part > r.filter.Parts {
		return usage(cmd, "--part is K/N, such as 1/3, not %q", r.part)
	}
	return nil
}

func (c *cli) listCases(cases []conformance.Case) error {
	for _, one := range cases {
		var err error
		if c.json() {
			err = c.line(map[string]any{"case": one.Name, "title": one.Title(), "contract": one.Contract(), "long": one.Long})
		} else {
			note := ""
			if one.Long {
				note = "   (--long)"
			}
			_, err = fmt.Fprintln(c.stdout, one.Title()+note)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tally is the summary of a run.
type tally struct {
	OK       int     `json:"ok"`
	Failed   int     `json:"failed"`
	Skipped  int     `json:"skipped"`
	NotRun   int     `json:"notRun"`
	Seconds  float64 `json:"seconds"`
	Seed     uint64  `json:"seed"`
	Contract []int   `json:"contracts"`
}

// options returns the suite's options, with the contents of the files that the flags name.
func (r *conformanceRun) options() (conformance.Options, error) {
	opts := conformance.Options{
		Seed: r.filter.Seed, Scale: r.scale, Template: r.template, CaseTimeout: r.timeout, Upstream: r.upstream,
	}
	if r.goProgram != "" {
		var err error
		if opts.GoProgram, err = os.ReadFile(r.goProgram); err != nil {
			return opts, err
		}
	}
	if r.upstreamCert != "" {
		certificate, err := tls.LoadX509KeyPair(r.upstreamCert, r.upstreamKey)
		if err != nil {
			return opts, fmt.Errorf("--upstream-cert %s and --upstream-key %s: %w", r.upstreamCert, r.upstreamKey, err)
		}
		opts.UpstreamCertificate = &certificate
	}
	return opts, nil
}

// conformance runs the cases and always cleans up.
func (c *cli) conformance(ctx context.Context, r *conformanceRun, cases []conformance.Case) error {
	if r.atMost > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.atMost, fmt.Errorf("the suite took longer than %v", r.atMost))
		defer cancel()
	}
	opts, err := r.options()
	if err != nil {
		return err
	}
	opts.Address, opts.Client = c.target()
	suite, err := conformance.Open(ctx, opts)
	if err != nil {
		return err
	}
	if !c.json() {
		_, err = fmt.Fprintf(c.stdout, "sandgate %s, provider %s, at %s: %d cases, seed %d, scale %v\n",
			terminal.Clean(suite.Info().GetVersion()), terminal.Clean(suite.Info().GetProvider()), opts.Address, len(cases), r.filter.Seed, r.scale)
	}
	sum := tally{Seed: r.filter.Seed, Contract: []int{}}
	began := time.Now()
	if err == nil {
		stop, cancel := context.WithCancelCause(ctx)
		err = suite.RunAll(stop, cases, func(result conformance.Result) {
			sum.add(result)
			// Without a reader the rest is pointless, but not the cleanup.
			if broken := c.caseLine(result, r.verbose); broken != nil {
				cancel(broken)
			}
		})
		cancel(nil)
	}
	left := closeSuite(ctx, suite, errors.Is(err, conformance.ErrServerGone))
	sum.Seconds, sum.NotRun = time.Since(began).Seconds(), len(cases)-sum.OK-sum.Failed-sum.Skipped
	if printed := c.summary(sum, left); printed != nil {
		return printed
	}
	switch {
	case err != nil:
		return err
	case sum.Failed > 0 || left != nil:
		return exitCode(1)
	}
	return nil
}

// closeSuite deletes the suite's sandboxes, even if the user's context has ended.
func closeSuite(ctx context.Context, suite *conformance.Suite, gone bool) error {
	timeout := time.Minute
	if gone {
		timeout = time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err := suite.Close(ctx)
	if err != nil && gone {
		return errors.New("sandboxes of the suite may be left behind; they expire by themselves")
	}
	return err
}

// target returns the server's address and the client options that the flags set.
func (c *cli) target() (string, []sandgate.Option) {
	address := cmp.Or(c.address, os.Getenv("SANDGATE_ADDRESS"), sandgate.DefaultAddress)
	return address, append(c.options(), sandgate.WithDialOptions(append(c.dial, grpc.WithUserAgent("sandgate-conformance/"+version))...))
}

func (s *tally) add(r conformance.Result) {
	switch r.Outcome {
	case conformance.OK:
		s.OK++
		// The cases come by contract.
		if n := len(s.Contract); n == 0 || s.Contract[n-1] != r.Case.Contract() {
			s.Contract = append(s.Contract, r.Case.Contract())
		}
	case conformance.Failed:
		s.Failed++
	case conformance.Skipped:
		s.Skipped++
	}
}

// line prints a value as JSON on one line.
func (c *cli) line(v any) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

func (c *cli) caseLine(r conformance.Result, verbose bool) error {
	if c.json() {
		return c.line(map[string]any{
			"case": r.Case.Name, "title": r.Case.Title(), "contract": r.Case.Contract(), "outcome": strings.ToLower(string(r.Outcome)),
			"seconds": r.Took.Seconds(), "reasons": append([]string{}, r.Reasons...), "log": append([]string{}, r.Log...),
		})
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%-4s %-52s ", r.Outcome, r.Case.Title())
	if r.Outcome == conformance.Skipped || r.Outcome == conformance.Stopped {
		fmt.Fprintf(&text, "(%s)\n", terminal.Clean(strings.Join(r.Reasons, "; ")))
	} else {
		fmt.Fprintf(&text, "%7.2f s\n", r.Took.Seconds())
	}
	if r.Outcome == conformance.Failed {
		indent(&text, r.Reasons)
	}
	if verbose || r.Outcome == conformance.Failed {
		indent(&text, r.Log)
	}
	_, err := fmt.Fprint(c.stdout, text.String())
	return err
}

// indent prints texts below a case, without control characters.
func indent(b *strings.Builder, texts []string) {
	for _, text := range texts {
		for line := range strings.Lines(text) {
			fmt.Fprintf(b, "       %s\n", terminal.Clean(strings.TrimRight(strings.ReplaceAll(line, "\t", "  "), "\r\n")))
		}
	}
}

func (c *cli) summary(s tally, left error) error {
	if c.json() {
		leftovers := []string{}
		if left != nil {
			leftovers = strings.Split(left.Error(), "\n")
		}
		return c.line(map[string]any{"summary": s, "left": leftovers})
	}
	var text strings.Builder
	if left != nil {
		fmt.Fprintf(&text, "FAIL cleaning up\n")
		indent(&text, []string{left.Error()})
	}
	fmt.Fprintf(&text, "%d ok, %d failed, %d skipped", s.OK, s.Failed, s.Skipped)
	if s.NotRun > 0 {
		fmt.Fprintf(&text, ", %d not run", s.NotRun)
	}
	fmt.Fprintf(&text, " in %.0f s; contracts covered: %s; seed %d\n", s.Seconds, ranges(s.Contract), s.Seed)
	_, err := fmt.Fprint(c.stdout, text.String())
	return err
}

// ranges prints rising numbers, such as "2, 4-16, 24".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		switch {
		case j > i+1:
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		case j == i+1:
			parts = append(parts, strconv.Itoa(numbers[i]), strconv.Itoa(numbers[j]))
		default:
			parts = append(parts, strconv.Itoa(numbers[i]))
		}
		i = j + 1
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
