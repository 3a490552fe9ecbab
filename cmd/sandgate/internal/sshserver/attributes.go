package sshserver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/pkg/sftp"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Filecmd handles what changes names and attributes.
func (f *files) Filecmd(r *sftp.Request) error { return f.reply(f.command(r)) }

// PosixRename renames a file and replaces one of that name.
func (f *files) PosixRename(r *sftp.Request) error {
	return f.reply(f.sandbox.Move(f.ctx, r.Filepath, r.Target, true))
}

func (f *files) command(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return f.setstat(r)
	case "Rename":
		return f.sandbox.Move(f.ctx, r.Filepath, r.Target, false)
	case "Mkdir":
		_, err := f.sandbox.MakeDirectory(f.ctx, r.Filepath, sandgate.WithoutParents())
		return err
	case "Rmdir", "Remove":
		info, err := f.sandbox.Stat(f.ctx, r.Filepath)
		if err != nil {
			return err
		}
		if isDirectory := info.GetType() == sandgate.Directory; isDirectory != (r.Method == "Rmdir") {
			return &sandgate.Error{Reason: sandgate.ErrFileNotDirectory, Message: r.Filepath + " is of another type"}
		}
		return f.sandbox.Remove(f.ctx, r.Filepath, false)
	case "Symlink":
		return f.link(r.Target, "-s", "--", r.Filepath, r.Target)
	case "Link":
		return f.link(r.Target, "--", r.Filepath, r.Target)
	}
	return unsupported(r.Method + " is not supported")
}

// setstat sets attributes: of a file that is being written when it is closed.
func (f *files) setstat(r *sftp.Request) error {
	flags, to := r.AttrFlags(), r.Attributes()
	if to == nil {
		return &statusError{errors.New("the attributes are malformed"), sftp.ErrSSHFxBadMessage}
	}
	if flags.UidGid {
		return unsupported("the owner of a file cannot be changed")
	}
	f.mu.Lock()
	w := f.writers[r.Filepath]
	f.mu.Unlock()
	if w != nil {
		return w.set(flags, *to)
	}
	return f.setAttributes(r.Filepath, flags, *to)
}

// setAttributes changes the attributes that differ. The API has no calls for them, so
// the programs of the sandbox do it.
func (f *files) setAttributes(path string, flags sftp.FileAttrFlags, to sftp.FileStat) error {
	info, err := f.stat(path)
	if err != nil {
		return err
	}
	if flags.Size && int64(to.Size) != info.GetSize() {
		return errTruncate
	}
	if mode := to.Mode & 0o7777; flags.Permissions && mode != info.GetMode() {
		if err := f.tool("chmod", fmt.Sprintf("%04o", mode), path); err != nil {
			return err
		}
	}
	if flags.Acmodtime && int64(to.Mtime) != info.GetModifyTime().GetSeconds() {
		return f.tool("touch", "-m", "-d", "@"+strconv.FormatUint(uint64(to.Mtime), 10), path)
	}
	return nil
}

// link makes a link that must not exist.
func (f *files) link(name string, args ...string) error {
	_, err := f.sandbox.Stat(f.ctx, name)
	if err == nil {
		return &sandgate.Error{Reason: sandgate.ErrFileAlreadyExists, Message: name + " exists"}
	}
	if !errors.Is(err, sandgate.ErrFileNotFound) {
		return err
	}
	return f.tool("ln", args...)
}

// tool runs a program of the sandbox.
func (f *files) tool(name string, args ...string) error {
	result, err := f.sandbox.Execute(f.ctx, sandgate.ExecuteRequest{
		Argv: append([]string{name}, args...), Env: map[string]string{"LC_ALL": "C"}, MaxOutputBytes: 4096,
	})
	switch {
	case errors.Is(err, sandgate.ErrCommandNotFound):
		return unsupported("the sandbox has no program " + name)
	case err != nil:
		return err
	case result.Code() != 0:
		return fmt.Errorf("%s failed with exit status %d: %s", name, result.Code(), result.Stderr)
	}
	return nil
}

// stat describes a file; links are followed.
func (f *files) stat(path string) (*sandgate.FileInfo, error) {
	info, err := f.sandbox.Stat(f.reads, path)
	if err != nil || info.GetType() != sandgate.Symlink {
		return info, err
	}
	switch info.GetTargetType() {
	case sandgate.Regular:
		return f.sandbox.DownloadFile(f.reads, path, io.Discard, nil, sandgate.DownloadLimit(0))
	case sandgate.Directory:
		return &sandgate.FileInfo{Path: path, Type: sandgate.Directory, Mode: 0o755, ModifyTime: info.GetModifyTime()}, nil
	}
	return nil, &sandgate.Error{Reason: sandgate.ErrFileNotFound, Message: path + " is a link to nothing that can be opened"}
}

// Filelist lists a directory, or describes a file.
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method == "List" {
		if err := f.directory(r.Filepath); err != nil {
			return nil, f.reply(err)
		}
		if !take(f.slots) {
			return nil, f.reply(errTooManyFiles)
		}
		next, stop := iter.Pull2(f.sandbox.List(f.reads, r.Filepath))
		return &listing{files: f, next: next, stop: stop}, nil
	}
	info, err := f.stat(r.Filepath)
	return f.described(r.Filepath, info, err)
}

// directory returns an error unless there is a directory at a path.
func (f *files) directory(path string) error {
	info, err := f.stat(path)
	if err == nil && info.GetType() != sandgate.Directory {
		err = &sandgate.Error{Reason: sandgate.ErrFileNotDirectory, Message: path + " is not a directory"}
	}
	return err
}

// Lstat describes a file or a link.
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := f.sandbox.Stat(f.reads, r.Filepath)
	return f.described(r.Filepath, info, err)
}

// described returns a file's description. A file that is being written has the size of
// what was written, as on a file system.
func (f *files) described(path string, info *sandgate.FileInfo, err error) (sftp.ListerAt, error) {
	f.mu.Lock()
	w := f.writers[path]
	f.mu.Unlock()
	switch {
	case w != nil && (info == nil || w.old == nil):
		info = &sandgate.FileInfo{Path: path, Type: sandgate.Regular, Mode: 0o644, Size: w.written()}
	case err != nil:
		return nil, f.reply(err)
	}
	return one{description{info}}, nil
}

// Readlink returns a link's target.
func (f *files) Readlink(path string) (string, error) {
	info, err := f.sandbox.Stat(f.reads, path)
	if err == nil && info.GetType() != sandgate.Symlink {
		err = errors.New(path + " is not a link")
	}
	return info.GetSymlinkTarget(), f.reply(err)
}

// listing is an open directory. Its offsets follow one another.
type listing struct {
	files *files
	mu    sync.Mutex
	next  func() (*sandgate.FileInfo, error, bool)
	stop  func()
}

// ListAt implements sftp.ListerAt.
func (l *listing) ListAt(into []os.FileInfo, _ int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range into {
		info, err, ok := l.next()
		if !ok {
			return i, io.EOF
		}
		if err != nil {
			return i, l.files.reply(err)
		}
		into[i] = description{info}
	}
	return len(into), nil
}

// Close ends the listing.
func (l *listing) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop()
	release(l.files.slots)
	return nil
}

// one is a list with one entry.
type one struct{ info os.FileInfo }

// ListAt implements sftp.ListerAt.
func (o one) ListAt(into []os.FileInfo, offset int64) (int, error) {
	if offset > 0 {
		return 0, io.EOF
	}
	return copy(into, []os.FileInfo{o.info}), io.EOF
}

// description is a file's description as an os.FileInfo.
type description struct{ info *sandgate.FileInfo }

func (d description) Name() string       { return path.Base(d.info.GetPath()) }
func (d description) Size() int64        { return d.info.GetSize() }
func (d description) ModTime() time.Time { return d.info.GetModifyTime().AsTime() }
func (d description) IsDir() bool        { return d.Mode().IsDir() }
func (d description) Sys() any           { return nil }

func (d description) Mode() fs.FileMode {
	bits := d.info.GetMode()
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	switch d.info.GetType() {
	case sandgate.Regular:
	case sandgate.Directory:
		mode |= fs.ModeDir
	case sandgate.Symlink:
		mode |= fs.ModeSymlink
	default:
		mode |= fs.ModeDevice
	}
	return mode
}
