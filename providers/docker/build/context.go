package build

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

const (
	ignoreFile        = ".dockerignore"
	defaultDockerfile = "Dockerfile"
	// maxText is the maximum size of a Dockerfile and of a .dockerignore.
	maxText = 1 << 20
)

// snapshot is a build context as it was when it was read: what is hashed is what is
// sent.
type snapshot struct {
	file       *os.File // a tar archive
	hash       string   // of names, modes, links and contents; not of owners and times
	dockerfile string   // its name in the archive
	text       []byte   // of the Dockerfile
}

func (s *snapshot) close() error {
	return errors.Join(s.file.Close(), os.Remove(s.file.Name()))
}

// take reads a build context. file is the path of the Dockerfile; empty: the one in the
// context. moby/go-archive would do it, but leaves out the files that it cannot read,
// without an error.
func take(ctx context.Context, dir, file string) (_ *snapshot, err error) {
	s := &snapshot{}
	if s.dockerfile, err = locate(dir, file); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	defer func() { _ = root.Close() }()
	if s.text, err = readText(root, s.dockerfile); err != nil {
		return nil, fmt.Errorf("%w: the Dockerfile: %w", ErrInput, err)
	}
	ignored, err := readIgnored(root)
	if err != nil {
		return nil, err
	}
	if s.file, err = os.CreateTemp("", "sandgate-build-*.tar"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	p := &packer{ctx: ctx, root: root, ignored: ignored, keep: s.dockerfile, sum: sha256.New(), archive: tar.NewWriter(s.file)}
	if err := fs.WalkDir(root.FS(), ".", p.visit); err != nil {
		return nil, fmt.Errorf("read the build context: %w", err)
	}
	if err := p.archive.Close(); err != nil {
		return nil, err
	}
	s.hash = hex.EncodeToString(p.sum.Sum(nil))
	return s, nil
}

// locate returns the name of the Dockerfile in the context.
func locate(dir, file string) (string, error) {
	if file == "" {
		return defaultDockerfile, nil
	}
	realDir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInput, err)
	}
	// The directory only: a link to a Dockerfile is an entry of the context.
	realParent, err := filepath.EvalSymlinks(filepath.Dir(file))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInput, err)
	}
	from, err := filepath.Abs(realDir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(filepath.Join(realParent, filepath.Base(file)))
	if err != nil {
		return "", err
	}
	name, err := filepath.Rel(from, to)
	if err != nil || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%w: the Dockerfile %s is outside of the directory %s", ErrInput, file, dir)
	}
	return filepath.ToSlash(name), nil
}

func readText(root *os.Root, name string) ([]byte, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err == nil && len(data) > maxText {
		err = fmt.Errorf("%s has more than %d bytes", name, maxText)
	}
	return data, err
}

func readIgnored(root *os.Root) (*patternmatcher.PatternMatcher, error) {
	var patterns []string
	text, err := readText(root, ignoreFile)
	if err == nil {
		patterns, err = ignorefile.ReadAll(strings.NewReader(string(text)))
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInput, ignoreFile, err)
	}
	matcher, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInput, ignoreFile, err)
	}
	return matcher, nil
}

// packer writes the entries of a context to an archive and adds them to a hash.
type packer struct {
	ctx     context.Context //nolint:containedctx // it lives for one walk
	root    *os.Root
	ignored *patternmatcher.PatternMatcher
	keep    string // the Dockerfile's name
	sum     hash.Hash
	archive *tar.Writer
}

// visit implements fs.WalkDirFunc. The order is that of the names, so equal contexts
// have equal hashes.
func (p *packer) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	if name == "." {
		return nil
	}
	// The daemon needs both files; it removes them from the context if they are ignored.
	if name != p.keep && name != ignoreFile {
		skip, err := p.ignored.MatchesOrParentMatches(name)
		if err != nil {
			return err
		}
		if skip && d.IsDir() && !p.ignored.Exclusions() && !strings.HasPrefix(p.keep, name+"/") {
			return fs.SkipDir
		}
		if skip {
			return nil
		}
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	return p.add(name, info)
}

// add adds one entry. Sockets, pipes and devices are left out.
func (p *packer) add(name string, info fs.FileInfo) (err error) {
	link := ""
	switch info.Mode().Type() {
	case 0, fs.ModeDir:
	case fs.ModeSymlink:
		if link, err = p.root.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	h, err := tar.FileInfoHeader(info, filepath.ToSlash(link))
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	if runtime.GOOS == "windows" {
		h.Mode |= 0o111 // its files have no mode
	}
	if err := p.archive.WriteHeader(h); err != nil {
		return err
	}
	fmt.Fprintf(p.sum, "%c %q %o %q %d\n", h.Typeflag, path.Clean(name), h.Mode, h.Linkname, h.Size)
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		return errors.Join(fmt.Errorf("%s changed while it was read", name), err)
	}
	// The size delimits the content in the hash.
	n, err := io.Copy(io.MultiWriter(p.archive, p.sum), f)
	if errors.Is(err, tar.ErrWriteTooLong) || err == nil && n < h.Size {
		return fmt.Errorf("%s changed while it was read", name)
	}
	return err
}
