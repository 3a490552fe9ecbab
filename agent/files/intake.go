package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/payload"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

var uploadID = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)

// intake is one file of an upload. After an error it drops further chunks.
type intake struct {
	service *Service
	header  *sandboxv1.UploadHeader
	limit   int64
	target  *target
	part    *part // set until close, also if the upload is not resumable
	err     error
}

func (s *Service) newIntake(v *paths.View, h *sandboxv1.UploadHeader, limit int64) *intake {
	in := &intake{service: s, header: h, limit: limit}
	in.err = in.open(v)
	if in.err != nil {
		in.close(h.GetUploadId() != "")
	}
	return in
}

func (in *intake) open(v *paths.View) error {
	h := in.header
	if err := in.check(); err != nil {
		return err
	}
	var err error
	if in.target, err = openTarget(v, h.GetPath(), paths.Write, optional(h.Mode != nil, h.GetMode()), h.GetCreateOnly()); err != nil {
		return err
	}
	if h.GetUploadId() == "" {
		in.part = &part{path: h.GetPath(), sum: newHasher()}
	} else if in.part, err = in.service.parts.claim(h.GetUploadId(), h.GetPath(), h.GetOffset()); err != nil {
		return err
	}
	if in.part.draft != nil || in.part.complete {
		return nil
	}
	return in.newDraft()
}

func (in *intake) check() error {
	h := in.header
	switch {
	case h.GetUploadId() != "" && !uploadID.MatchString(h.GetUploadId()):
		return requestFault("upload_id", "1 to 128 characters of a-z, A-Z, 0-9, \".\", \"_\", \"-\"")
	case h.GetOffset() < 0:
		return requestFault("offset", "negative")
	case h.GetOffset() > 0 && h.GetUploadId() == "":
		return requestFault("offset", "without upload_id")
	case h.Size != nil && h.GetSize() < 0:
		return requestFault("size", "negative")
	case len(h.GetSha256()) != 0 && len(h.GetSha256()) != 32:
		return requestFault("sha256", "not 32 bytes")
	case in.limit > 0 && h.GetSize() > in.limit:
		return tooLargeFault(h.GetPath(), in.limit)
	}
	return nil
}

func checkTrailer(t *sandboxv1.UploadTrailer) error {
	switch {
	case t.Size != nil && t.GetSize() < 0:
		return requestFault("trailer.size", "negative")
	case len(t.GetSha256()) != 0 && len(t.GetSha256()) != 32:
		return requestFault("trailer.sha256", "not 32 bytes")
	}
	return nil
}

// newDraft makes the file for the content. A draft of a resumable upload outlives the
// target's descriptor, so it has its own.
func (in *intake) newDraft() error {
	dir := in.target.loc.FD()
	if in.header.GetUploadId() != "" {
		fd, err := unix.Openat(dir, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		in.part.dir = os.NewFile(uintptr(fd), "part")
		dir = fd
	}
	var err error
	in.part.draft, err = in.service.newDraft(dir)
	return err
}

// write writes and then releases the next bytes.
func (in *intake) write(c payload.Payload) {
	switch {
	case in.err != nil:
	case in.part.complete:
		in.err = offsetFault(in.part.id, in.part.size)
	case in.header.Size != nil && int64(c.Size) > in.header.GetSize()-in.part.size:
		in.err = pathFault(checksum, in.header.GetPath(), fmt.Sprintf("more bytes than the %d announced", in.header.GetSize()))
		in.close(false)
	case in.limit > 0 && int64(c.Size) > in.limit-in.part.size:
		in.err = tooLargeFault(in.header.GetPath(), in.limit)
		in.close(false)
	default:
		in.store(c)
		return
	}
	c.Release()
}

func (in *intake) store(c payload.Payload) {
	n, err := in.part.draft.writeAll(c.Parts)
	in.part.size += int64(n)
	c.Truncate(n)
	in.part.sum.add(c)
	if in.err = err; err != nil {
		// A part that filled the disk must be removed.
		in.close(!errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT))
	}
}

// finish moves the file into place and returns its result.
func (in *intake) finish(ctx context.Context, t *sandboxv1.UploadTrailer) *sandboxv1.UploadResult {
	result := &sandboxv1.UploadResult{Path: in.header.GetPath()}
	if in.err == nil {
		in.err = in.complete(ctx, t)
	}
	if in.err != nil {
		result.Error = fileError(in.header.GetPath(), in.err)
		return result
	}
	result.Size, result.Sha256 = in.part.size, in.part.digest
	in.close(true)
	return result
}

func (in *intake) complete(ctx context.Context, t *sandboxv1.UploadTrailer) error {
	p, h := in.part, in.header
	if err := checkTrailer(t); err != nil {
		in.close(true)
		return err
	}
	for _, announced := range []struct {
		stated bool
		size   int64
	}{{h.Size != nil, h.GetSize()}, {t.Size != nil, t.GetSize()}} {
		if announced.stated && p.size != announced.size {
			in.close(p.complete || p.size < announced.size) // the rest may follow
			return pathFault(checksum, h.GetPath(), fmt.Sprintf("%d bytes came, %d were announced", p.size, announced.size))
		}
	}
	if !p.complete {
		p.digest = p.sum.digest()
	}
	for _, digest := range [][]byte{h.GetSha256(), t.GetSha256()} {
		if len(digest) > 0 && !bytes.Equal(p.digest, digest) {
			in.close(p.complete)
			return pathFault(checksum, h.GetPath(), "the SHA-256 is not the one announced")
		}
	}
	if p.complete {
		return nil
	}
	if _, err := in.service.land(ctx, in.target, p.draft); err != nil {
		in.close(true)
		return err
	}
	p.complete, p.draft = true, nil
	return nil
}

// abort ends the file because the stream failed.
func (in *intake) abort() { in.close(true) }

// close frees everything. It keeps the part of a resumable upload if keep is set. It may
// be called again.
func (in *intake) close(keep bool) {
	if in.part != nil {
		switch {
		case in.part.id == "":
			in.part.sum.stop()
			_ = in.part.clear()
		case keep:
			in.service.parts.release(in.part)
		default:
			in.service.parts.forget(in.part)
		}
		in.part = nil
	}
	if in.target != nil {
		_ = in.target.close()
		in.target = nil
	}
}
