//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/chaos/stream"
)

const (
	// maxCallTime bounds one call. A client resumes for a minute.
	maxCallTime = 2 * time.Minute
	// outputSize is what a command with output writes.
	outputSize = 64 << 10
	// maxStdin, maxText and maxBinary bound what is sent.
	maxStdin, maxText, maxBinary = 32 << 10, 8 << 10, 256 << 10
)

// errInterrupted is the result of a call whose outcome is unknown because the server was
// killed meanwhile.
var errInterrupted = errors.New("interrupted by the kill of the server")

// content is reproducible: from a seed and a size.
type content struct {
	seed uint64
	size int
}

// newContent draws a size of any order of magnitude.
func newContent(chance *rand.Rand, limit int) *content {
	return &content{seed: chance.Uint64(), size: int(math.Pow(float64(limit), chance.Float64()))}
}

func (c content) binary() []byte {
	data := make([]byte, c.size)
	_, _ = stream.New(c.seed, 0).Read(data)
	return data
}

// text returns lines of text, about five times its size.
func (c content) text() []byte { return []byte(hex.Dump(c.binary())) }

// mix are the calls with their shares in percent.
var mix = []struct {
	share int
	do    func(*worker, context.Context, *box) error
}{
	{22, (*worker).noOutput},
	{15, (*worker).output},
	{10, (*worker).stdin},
	{8, (*worker).upload},
	{12, (*worker).download},
	{10, (*worker).write},
	{10, (*worker).read},
	{4, (*worker).list},
	{8, (*worker).get},
	{1, (*worker).recreate},
}

// worker makes all calls of its tenants, one after the other.
type worker struct {
	*load
	chance  *rand.Rand
	tenants []*tenant
}

// next makes a call that chance chooses. A call whose outcome is unknown makes way for
// another sandbox.
func (w *worker) next(ctx context.Context) error {
	n := w.tenants[w.chance.IntN(len(w.tenants))]
	b := n.boxes[w.chance.IntN(len(n.boxes))]
	chosen, i := w.chance.IntN(100), 0
	for ; chosen >= mix[i].share; i++ {
		chosen -= mix[i].share
	}
	err := mix[i].do(w, ctx, b)
	for errors.Is(err, errInterrupted) {
		w.tally.interrupted.Add(1)
		b.unknown = true
		err = w.recreate(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", b.id, err)
	}
	return nil
}

// timed makes one call and counts it.
func (w *worker) timed(ctx context.Context, name string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxCallTime, errors.New("the call takes too long"))
	defer cancel()
	begin := time.Now()
	err := call(ctx)
	switch {
	case err == nil:
		w.tally.add(name, time.Since(begin))
		return nil
	case w.host.disturbed(begin) && (errors.Is(err, sandgate.ErrUnavailable) || errors.Is(err, sandgate.ErrConnectionLost)):
		return fmt.Errorf("%s: %w: %w", name, errInterrupted, err)
	default:
		return fmt.Errorf("%s: %w", name, err)
	}
}

// same compares what came back with what was sent.
func (w *worker) same(what string, got, want []byte) error {
	w.tally.bytes.Add(int64(len(want)))
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("%s: %d bytes came back, which differ from the %d expected at byte %d", what, len(got), len(want), at)
}

// execute runs a command and compares its output.
func (w *worker) execute(ctx context.Context, b *box, name string, r sandgate.ExecuteRequest, want []byte) error {
	var result *sandgate.Result
	err := w.timed(ctx, name, func(ctx context.Context) (err error) {
		result, err = b.handle.Execute(ctx, r)
		return err
	})
	if err != nil {
		return err
	}
	if result.Code() != 0 || len(result.Stderr) > 0 {
		return fmt.Errorf("%s: ended %v, stderr %q", name, result.Exit, result.Stderr)
	}
	return w.same(name, result.Stdout, want)
}

func (w *worker) noOutput(ctx context.Context, b *box) error {
	return w.execute(ctx, b, "Execute: true", sandgate.ExecuteRequest{Argv: []string{"true"}}, nil)
}

func (w *worker) output(ctx context.Context, b *box) error {
	from := 1_000_000 + w.chance.IntN(1_000_000)
	var want []byte
	for n := from; len(want) < outputSize; n++ {
		want = append(strconv.AppendInt(want, int64(n), 10), '\n')
	}
	shell := fmt.Sprintf("seq %d %d | head -c %d", from, from+outputSize, outputSize)
	return w.execute(ctx, b, "Execute: 64 KiB of output", sandgate.ExecuteRequest{Shell: shell}, want[:outputSize])
}

func (w *worker) stdin(ctx context.Context, b *box) error {
	data := newContent(w.chance, maxStdin).binary()
	return w.execute(ctx, b, "Execute: stdin", sandgate.ExecuteRequest{Argv: []string{"cat"}, Stdin: data}, data)
}

func (w *worker) upload(ctx context.Context, b *box) error {
	slot, c := w.chance.IntN(len(b.binary)), newContent(w.chance, maxBinary)
	path, data := b.path(w.host, "binary", slot), c.binary()
	err := w.timed(ctx, "Upload", func(ctx context.Context) error {
		result, err := b.handle.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(data)})
		return errors.Join(err, result.Err)
	})
	if err == nil {
		b.binary[slot] = c
	}
	return err
}

// written chooses one of the files that exist, or -1 if there is none.
func (w *worker) written(files [2]*content) int {
	slot := w.chance.IntN(len(files))
	for i := range files {
		if at := (slot + i) % len(files); files[at] != nil {
			return at
		}
	}
	return -1
}

func (w *worker) download(ctx context.Context, b *box) error {
	slot := w.written(b.binary)
	if slot < 0 {
		return w.upload(ctx, b)
	}
	var got bytes.Buffer
	err := w.timed(ctx, "Download", func(ctx context.Context) error {
		_, err := b.handle.DownloadFile(ctx, b.path(w.host, "binary", slot), &got, nil)
		return err
	})
	if err != nil {
		return err
	}
	return w.same("Download", got.Bytes(), b.binary[slot].binary())
}

func (w *worker) write(ctx context.Context, b *box) error {
	slot, c := w.chance.IntN(len(b.text)), newContent(w.chance, maxText)
	err := w.timed(ctx, "WriteFile", func(ctx context.Context) error {
		_, err := b.handle.Write(ctx, b.path(w.host, "text", slot), c.text(), sandgate.WriteRequest{})
		return err
	})
	if err == nil {
		b.text[slot] = c
	}
	return err
}

func (w *worker) read(ctx context.Context, b *box) error {
	slot := w.written(b.text)
	if slot < 0 {
		return w.write(ctx, b)
	}
	lines := strings.Split(strings.TrimSuffix(string(b.text[slot].text()), "\n"), "\n")
	from := w.chance.IntN(len(lines))
	var got *sandgate.Lines
	err := w.timed(ctx, "ReadLines", func(ctx context.Context) (err error) {
		got, err = b.handle.Read(ctx, b.path(w.host, "text", slot), sandgate.ReadRequest{Offset: int64(from)})
		return err
	})
	if err != nil {
		return err
	}
	return w.same("ReadLines", got.GetContent(), []byte(strings.Join(lines[from:], "\n")))
}

// list reads all pages and compares the ids: a tenant sees its own sandboxes, and only
// its worker creates and deletes them.
func (w *worker) list(ctx context.Context, b *box) error {
	var got, want []string
	r := sandgate.ListRequest{PageSize: int32(1 + w.chance.IntN(2*len(b.tenant.boxes)))}
	for more := true; more; more = r.PageToken != "" {
		err := w.timed(ctx, "ListSandboxes: a page", func(ctx context.Context) error {
			page, err := b.tenant.client.ListPage(ctx, r)
			for _, info := range page.Sandboxes {
				got = append(got, info.GetSandboxId())
			}
			r.PageToken = page.NextPageToken
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, b := range b.tenant.boxes {
		want = append(want, b.id)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("ListSandboxes of %s: got %v, want %v", b.tenant.name, got, want)
	}
	return nil
}

func (w *worker) get(ctx context.Context, b *box) error {
	var got *sandgate.Info
	err := w.timed(ctx, "GetSandbox", func(ctx context.Context) (err error) {
		got, err = b.handle.Info(ctx)
		return err
	})
	if err == nil && (got.GetSandboxId() != b.id || got.GetState() != sandgate.Active || got.GetIncarnation() != b.handle.Incarnation) {
		err = fmt.Errorf("GetSandbox: got %v, want incarnation %s", got, b.handle.Incarnation)
	}
	return err
}

// recreate deletes the sandbox and creates another in its place.
func (w *worker) recreate(ctx context.Context, b *box) error {
	if err := w.delete(ctx, b); err != nil {
		return err
	}
	return w.create(ctx, b)
}

func (w *worker) create(ctx context.Context, b *box) error {
	n := b.tenant
	n.created++
	id := fmt.Sprintf("%s-%d", n.name, n.created)
	*b = box{tenant: n, id: id, handle: n.client.Sandbox(id), kills: w.host.killed()}
	return w.timed(ctx, "CreateSandbox", func(ctx context.Context) error {
		handle, _, err := n.client.Create(ctx, sandgate.CreateRequest{ID: id})
		if err == nil {
			b.handle = handle // with its incarnation
		}
		return err
	})
}

func (w *worker) delete(ctx context.Context, b *box) error {
	begin, found := time.Now(), false
	err := w.timed(ctx, "DeleteSandbox", func(ctx context.Context) (err error) {
		found, err = b.tenant.client.Delete(ctx, b.id)
		return err
	})
	if err != nil {
		return err
	}
	// The client may have deleted it before a kill, and repeated the call.
	certain := !b.unknown && !w.host.disturbed(begin)
	if !found && certain {
		return errors.New("DeleteSandbox: the sandbox was gone already")
	}
	if certain {
		b.tenant.mu.Lock()
		b.tenant.ended[b.id] = b.kills
		b.tenant.mu.Unlock()
	}
	return w.host.deleted(b.id)
}
