package sandgate

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type (
	// FileInfo describes a file without following a link at its name.
	FileInfo = sandboxv1.FileInfo
	// FileType is the kind of a file.
	FileType = sandboxv1.FileType
	// Lines is a window of lines of a text file.
	Lines = sandboxv1.ReadLinesResponse
	// Written describes what was written.
	Written = sandboxv1.WriteFileResponse
	// Edited is the result of an edit.
	Edited = sandboxv1.EditFileResponse
	// Globbed lists files by path.
	Globbed = sandboxv1.GlobFilesResponse
	// Searched lists matching lines by path and line.
	Searched = sandboxv1.SearchFilesResponse
)

// The types of files.
const (
	Regular   = sandboxv1.FileType_FILE_TYPE_REGULAR
	Directory = sandboxv1.FileType_FILE_TYPE_DIRECTORY
	Symlink   = sandboxv1.FileType_FILE_TYPE_SYMLINK
)

// chunkSize is the size of a file's chunks: of the sizes that fit grpc-go's buffers
// without waste, the one with the least overhead.
const chunkSize = 256 << 10

// ReadRequest is a window of lines. The zero value reads from the first line as many
// as fit into one reply.
type ReadRequest struct {
	// Offset is how many lines are skipped.
	Offset int64
	// Limit is how many lines are read at most. 0: no limit.
	Limit int64
	// MaxBytes bounds the content. 0: 512 000.
	MaxBytes int64
}

// WriteRequest holds the options of a write. The zero value replaces a file and keeps
// its permission bits.
type WriteRequest struct {
	// Mode are the permission bits; nil: those of the file that is replaced,
	// 0644 for a new one.
	Mode *uint32
	// CreateOnly refuses to replace a file.
	CreateOnly bool
}

// GlobRequest holds the options of a glob. The zero value finds regular files at any
// depth.
type GlobRequest struct {
	// Shallow: a pattern without "/" matches only directly in the directory.
	Shallow bool
	// IncludeDirectories lists directories too; with IncludeLinks, links to files count
	// as files.
	IncludeDirectories, IncludeLinks bool
	// MaxResults. 0: 10 000.
	MaxResults int32
}

// SearchRequest holds the options of a search.
type SearchRequest struct {
	// Regexp: the pattern is in RE2 syntax. Default: a literal text.
	Regexp bool
	// IgnoreCase makes upper and lower case the same.
	IgnoreCase bool
	// Glob narrows the search to files that match. Default: all.
	Glob string
	// ExcludeDirs are names of directories to skip.
	ExcludeDirs []string
	// MaxMatches. 0: 10 000.
	MaxMatches int32
	// MaxFileBytes: larger files are skipped. 0: none.
	MaxFileBytes int64
	// ContextBefore and ContextAfter are lines around each match, at most 20 each.
	ContextBefore, ContextAfter int32
	// IncludeBinary: files with NUL bytes are searched too.
	IncludeBinary bool
}

// File is one file to upload.
type File struct {
	// Path is the absolute path in the sandbox.
	Path string
	// Content is read to its end.
	Content io.Reader
	// Size of the content, if it is known: the server rejects any other. nil: unknown.
	Size *int64
	// Mode and CreateOnly as in [WriteRequest].
	Mode       *uint32
	CreateOnly bool
	// Progress, if set, is called after each chunk with the number of bytes done.
	Progress func(done int64)
}

// FileResult is the result for one file.
type FileResult struct {
	Path   string
	Size   int64
	SHA256 []byte
	// Err is why the file failed, or nil.
	Err error
}

// Upload writes files, each of them completely or not at all. It returns one result
// per file, in order. The error concerns the whole call, not about a single file. The
// server takes at most 10 000 files in a call, and fails the call beyond that.
func (s *Sandbox) Upload(ctx context.Context, files ...File) ([]FileResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := s.client.stub.Upload(ctx)
	if err != nil {
		return nil, err
	}
	sums := make([]hash.Hash, len(files))
	for i, file := range files {
		sums[i] = sha256.New()
		err := s.send(stream, file, &sandboxv1.UploadHeader{}, sums[i])
		if err == io.EOF { //nolint:errorlint // Wrapped, it is a source's.
			break // The server ended the call; its reply holds the reason.
		}
		if err != nil {
			return nil, err
		}
	}
	reply, err := stream.CloseAndRecv()
	if err != nil {
		return nil, prematureEnd(err)
	}
	if len(reply.GetResults()) != len(files) {
		return nil, local(ErrInternal, codes.DataLoss, nil, "the server broke the protocol: %d results for %d files", len(reply.GetResults()), len(files))
	}
	results := make([]FileResult, len(files))
	for i, r := range reply.GetResults() {
		results[i] = FileResult{Path: files[i].Path, Err: fromFile(files[i].Path, r.GetError())}
		if sums[i] != nil {
			results[i] = resultOf(r, sums[i].Sum(nil))
		}
	}
	return results, nil
}

// send sends one file from a header's offset on, with its trailer, and adds what
// it sent to sum, which holds what came before the offset. A bare io.EOF means
// that the server has ended the call.
func (s *Sandbox) send(stream sandboxv1.SandboxService_UploadClient, file File, header *sandboxv1.UploadHeader, sum hash.Hash) error {
	header.SandboxId, header.ExpectedIncarnation = s.id, s.Incarnation
	header.Path, header.Mode, header.Size, header.CreateOnly = file.Path, file.Mode, file.Size, file.CreateOnly
	err := stream.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: header}})
	if err != nil {
		return err
	}
	done, buffer := header.GetOffset(), make([]byte, chunkSize)
	for {
		n, err := fill(file.Content, buffer)
		if n > 0 {
			_, _ = sum.Write(buffer[:n]) // A hash never fails.
			chunk := &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: buffer[:n]}}
			if err := stream.Send(chunk); err != nil {
				return err
			}
			if done += int64(n); file.Progress != nil {
				file.Progress(done)
			}
		}
		switch {
		case err == io.EOF: //nolint:errorlint // Wrapped, it is the source's.
			trailer := &sandboxv1.UploadTrailer{Size: &done, Sha256: sum.Sum(nil)}
			return stream.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: trailer}})
		case err != nil:
			return local(nil, codes.Aborted, err, "the content of %s cannot be read: %v", file.Path, err)
		}
	}
}

// fill reads until the buffer is full or the source ends or fails. Unlike
// [io.ReadFull] it passes the source's own error on, so that a source that broke
// off with [io.ErrUnexpectedEOF] is not taken for one that ended.
func fill(source io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var read int
		read, err = source.Read(buffer[n:])
		n += read
	}
	return n, err
}

// UploadFile writes one file. If its content is an [io.ReadSeeker], the upload resumes
// after a broken connection: it sends the rest.
func (s *Sandbox) UploadFile(ctx context.Context, file File) (FileResult, error) {
	seeker, ok := file.Content.(io.ReadSeeker)
	if !ok {
		results, err := s.Upload(ctx, file)
		return only(results, err)
	}
	start, err := seeker.Seek(0, io.SeekCurrent)
	if err != nil { // Such as a pipe, which has the method but cannot.
		file.Content = io.MultiReader(seeker)
		results, err := s.Upload(ctx, file)
		return only(results, err)
	}
	up := upload{sandbox: s, file: file, content: seeker, start: start, id: newID()}
	return up.run(ctx)
}

// only returns the result of the only file.
func only(results []FileResult, err error) (FileResult, error) {
	if err != nil || len(results) == 0 {
		return FileResult{}, err
	}
	return results[0], results[0].Err
}

func mismatch(path string) error {
	return &Error{
		Code: codes.DataLoss, Reason: "FILE_CHECKSUM_MISMATCH",
		Message: "the bytes of " + path + " were changed on the way", Metadata: map[string]string{"path": path},
	}
}

// FileContent is a file that was downloaded into memory.
type FileContent struct {
	Path    string
	Content []byte
	// Err is why the file failed, or nil.
	Err error
}

// Download reads small files into memory, one result per path, in order. The error
// concerns the whole call, not a single file.
func (s *Sandbox) Download(ctx context.Context, paths ...string) ([]FileContent, error) {
	results := make([]FileContent, len(paths))
	for i, path := range paths {
		results[i].Path = path
	}
	down := &download{sandbox: s, paths: paths, errs: make([]error, len(paths))}
	down.write = func(i int, p []byte) error {
		results[i].Content = append(results[i].Content, p...)
		return nil
	}
	err := down.run(ctx)
	for i := range results {
		results[i].Err = down.errs[i]
	}
	return results, err
}

// DownloadFile writes a file's content to w and returns its description. After a broken
// connection it continues from the same byte, unless the file has changed. progress,
// if not nil, is called with the number of bytes done, skipped ones included, and the
// file's size.
func (s *Sandbox) DownloadFile(ctx context.Context, path string, w io.Writer, progress func(done, size int64), opts ...DownloadOption) (*FileInfo, error) {
	down := &download{sandbox: s, paths: []string{path}, errs: make([]error, 1)}
	for _, opt := range opts {
		opt(down)
	}
	down.offset = down.start
	down.write = func(_ int, p []byte) error {
		_, err := w.Write(p)
		if err == nil && progress != nil {
			progress(down.offset+int64(len(p)), down.info.GetSize())
		}
		return err
	}
	err := down.run(ctx)
	if err == nil {
		err = down.errs[0]
	}
	return down.info, err
}
