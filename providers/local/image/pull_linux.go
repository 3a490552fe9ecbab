package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
)

const (
	// pullTimeout is long: a pull continues when no creation waits for it any more.
	pullTimeout = time.Hour
	// maxPulls is how many pulls of a server run at once: each takes a processor to
	// unpack, and the disk. Others wait.
	maxPulls = 3
	// progressInterval is how often the log has how far a pull is.
	progressInterval = 5 * time.Second
	namesDir         = ".names"
)

var errSlowPull = fmt.Errorf("the image was not pulled within %v: %w", pullTimeout, providers.ErrUnavailable)

// progress is how far a pull is, in bytes.
type progress struct{ done, total atomic.Int64 }

// pull is one that runs in this process. key, meta and err are set when ended is
// closed.
type pull struct {
	progress
	waits atomic.Bool // for its turn
	ended chan struct{}
	key   string
	meta  *Meta
	err   error
}

// pulls are those that run in this process, by name. Creations that want the same
// image wait for the same pull. A pull outlives them: the timeout of one creation may
// be too short for a large image, and the next creation then finds it.
type pulls struct {
	ctx  context.Context //nolint:containedctx // it ends with the store
	stop context.CancelCauseFunc
	work sync.WaitGroup
	turn *semaphore.Weighted

	mu      sync.Mutex
	running map[string]*pull
}

// Close ends the pulls.
func (s *Store) Close() {
	s.pulls.stop(errClosed)
	s.pulls.work.Wait()
	s.registries.base.CloseIdleConnections()
}

var errClosed = fmt.Errorf("the server stops: %w", providers.ErrUnavailable)

// Pull returns the key and metadata of an image in a registry. It pulls the image if
// the policy wants that.
func (s *Store) Pull(ctx context.Context, r Reference, policy Policy) (string, *Meta, error) {
	if policy != PullAlways || r.pinned() {
		if key, meta, err := s.kept(ctx, r); err != nil || meta != nil {
			return key, meta, err
		}
	}
	if policy == PullNever {
		return "", nil, fmt.Errorf("it is not on this machine, and the template does not allow to pull it: %w", providers.ErrStartFailed)
	}
	providers.NotePull(ctx)
	p := s.join(r)
	select {
	case <-p.ended:
		return p.key, p.meta, p.err
	case <-ctx.Done():
		return "", nil, fmt.Errorf("%s: %w", cmp.Or(s.Progress(r), "pull"), context.Cause(ctx))
	}
}

// Progress describes a pull of this process, and is empty if there is none.
func (s *Store) Progress(r Reference) string {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	p := s.pulls.running[r.name.String()]
	if p == nil {
		return ""
	}
	if p.waits.Load() {
		return fmt.Sprintf("waiting to pull %s: this server pulls %d other images", r.name, maxPulls)
	}
	text := "pulling " + r.name.String()
	if total := p.total.Load(); total > 0 {
		text += fmt.Sprintf(": %d of %d MiB", p.done.Load()>>20, (total+1<<20-1)>>20)
	}
	return text
}

func (s *Store) join(r Reference) *pull {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	name := r.name.String()
	if p := s.pulls.running[name]; p != nil {
		return p
	}
	p := &pull{ended: make(chan struct{})}
	s.pulls.running[name] = p
	s.pulls.work.Go(func() {
		p.key, p.meta, p.err = s.pullInTurn(r, p)
		s.pulls.mu.Lock()
		delete(s.pulls.running, name)
		s.pulls.mu.Unlock()
		close(p.ended)
	})
	return p
}

// pullInTurn pulls when fewer than maxPulls run. The time that it waits is not a part
// of its timeout.
func (s *Store) pullInTurn(r Reference, p *pull) (string, *Meta, error) {
	if !s.pulls.turn.TryAcquire(1) {
		p.waits.Store(true)
		if s.pulls.turn.Acquire(s.pulls.ctx, 1) != nil {
			return "", nil, context.Cause(s.pulls.ctx)
		}
		p.waits.Store(false)
	}
	defer s.pulls.turn.Release(1)
	ctx, cancel := context.WithTimeoutCause(s.pulls.ctx, pullTimeout, errSlowPull)
	defer cancel()
	return s.pull(ctx, r, p)
}

// pull tries the mirrors and then the registry.
func (s *Store) pull(ctx context.Context, r Reference, p *pull) (key string, meta *Meta, err error) {
	defer func() {
		// What is parsed here comes from other machines, and no handler recovers.
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	log := s.log.With(slog.String("image", r.name.String()))
	began := time.Now()
	log.LogAttrs(ctx, slog.LevelInfo, "pulling an image")
	tick := time.NewTicker(progressInterval)
	logged := make(chan struct{})
	defer close(logged)
	s.pulls.work.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				log.LogAttrs(ctx, slog.LevelInfo, "pulling an image", slog.Int64("bytes", p.done.Load()), slog.Int64("of", p.total.Load()))
			case <-logged:
				return
			}
		}
	})
	for _, host := range s.registries.hosts(r) {
		p.done.Store(0)
		key, meta, err = s.pullFrom(ctx, host, r, p)
		if err == nil {
			log.LogAttrs(ctx, slog.LevelInfo, "pulled an image", slog.String("from", host), slog.String("digest", key), slog.Duration("took", time.Since(began)))
			return key, meta, nil
		}
		// The cause may be the answer of any server: it is for the operator only.
		log.LogAttrs(ctx, slog.LevelWarn, "an image could not be pulled", slog.String("from", host), slog.Any("error", err))
		err = pullError(ctx, host, err)
		if ctx.Err() != nil || errors.Is(err, providers.ErrExhausted) {
			break
		}
	}
	return "", nil, err
}

func (s *Store) pullFrom(ctx context.Context, host string, r Reference, p *pull) (string, *Meta, error) {
	repo, err := s.registries.connect(ctx, host, r)
	if err != nil {
		return "", nil, err
	}
	src, err := openRemote(ctx, repo, r, &p.progress)
	if err != nil {
		return "", nil, err
	}
	meta, err := s.unpackOnce(ctx, src)
	if err != nil {
		return "", nil, err
	}
	return src.key, meta, s.keep(r, src.key)
}

// keptName is what a name meant when it was last pulled.
type keptName struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

func (s *Store) nameFile(r Reference) string {
	sum := sha256.Sum256([]byte(r.name.String()))
	return filepath.Join(s.dir, namesDir, hex.EncodeToString(sum[:]))
}

// keep records what a name means.
func (s *Store) keep(r Reference, key string) error {
	if err := os.Mkdir(filepath.Join(s.dir, namesDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return atomicfile.WriteJSON(s.nameFile(r), keptName{r.name.String(), key})
}

// kept returns the image that a name meant when it was last pulled. Its metadata is
// nil if it is not kept.
func (s *Store) kept(ctx context.Context, r Reference) (string, *Meta, error) {
	data, err := os.ReadFile(s.nameFile(r))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	var n keptName
	if json.Unmarshal(data, &n) != nil || n.Name != r.name.String() || !isKey(n.Key) {
		return "", nil, nil // the machine went down while it was written
	}
	held, err := s.locks.Acquire(ctx, lockName(n.Key))
	if err != nil {
		return "", nil, err
	}
	defer held.Release(true)
	meta, err := s.unpacked(n.Key)
	return n.Key, meta, err
}

func isKey(text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == sha256.Size
}

// forgetNames removes the names of images that are not kept any more.
func (s *Store) forgetNames() error {
	files, err := filepath.Glob(filepath.Join(s.dir, namesDir, "*"))
	for _, file := range files {
		data, readErr := os.ReadFile(file)
		if readErr != nil {
			continue // another server has removed it
		}
		var n keptName
		if json.Unmarshal(data, &n) == nil && isKey(n.Key) {
			if _, statErr := os.Stat(s.image(n.Key)); statErr == nil {
				continue
			}
		}
		if removal := os.Remove(file); !errors.Is(removal, fs.ErrNotExist) {
			err = errors.Join(err, removal)
		}
	}
	return err
}
