package egress

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxQueries bounds the queries that wait for the server; more are dropped, and
	// resolvers ask again.
	maxQueries = 64
	// maxUDPQuery is the largest query by UDP, in bytes. A query has one name.
	maxUDPQuery = 1232
	// queryTime bounds the answer to a query. Resolvers give up after 5 s.
	queryTime = 4 * time.Second
	// answerTTL is how long a resolver may keep an answer, in seconds.
	answerTTL = 60
)

// anyPort has listenDNS choose a port.
const anyPort = "127.0.0.1:0"

// listenDNS opens the name server, by TCP and UDP.
func (s *Service) listenDNS(address string) error {
	l, err := s.listen(address, s.serveTCP)
	if err != nil {
		return fmt.Errorf("the sandbox's name server: %w", err)
	}
	conn, err := (&net.ListenConfig{}).ListenPacket(s.ctx, "udp4", l.Addr().String())
	if err != nil {
		s.open.remove(l)
		return fmt.Errorf("the sandbox's name server: %w", err)
	}
	if !s.open.add(conn) {
		return errStopped
	}
	s.nameServer = l.Addr().(*net.TCPAddr).AddrPort()
	s.work.Go(func() { s.serveUDP(conn) })
	return nil
}

// serveUDP answers queries by UDP until the socket is closed.
func (s *Service) serveUDP(conn net.PacketConn) {
	slots := make(chan struct{}, maxQueries)
	buffer := make([]byte, maxUDPQuery)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			continue // of an earlier answer that could not be delivered
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		query := append([]byte(nil), buffer[:n]...)
		s.work.Go(func() {
			defer func() { <-slots }()
			s.recovery.Guard("a name query", func() {
				if reply := s.resolve(query); reply != nil {
					_, _ = conn.WriteTo(reply, from)
				}
			})
		})
	}
}

// serveTCP answers the queries of one TCP connection, one after the other.
func (s *Service) serveTCP(conn *net.TCPConn) {
	for {
		_ = conn.SetDeadline(time.Now().Add(setupTime))
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply := s.resolve(query)
		if reply == nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// resolve returns the reply to a query, or nil if it is none.
func (s *Service) resolve(query []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(query)
	if err != nil || head.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	if _, err := parser.Question(); err == nil || head.OpCode != 0 || question.Class != dnsmessage.ClassINET {
		return reply(head, question, dnsmessage.RCodeNotImplemented, netip.Addr{})
	}
	ctx, cancel := context.WithTimeout(s.ctx, queryTime)
	defer cancel()
	code, addr := s.lookup(ctx, strings.ToLower(strings.TrimSuffix(question.Name.String(), ".")))
	if question.Type != dnsmessage.TypeA {
		// The name exists, but has no IPv6 address, and no keys for an encrypted
		// ClientHello.
		addr = netip.Addr{}
	}
	return reply(head, question, code, addr)
}

// lookup returns the address of a name.
func (s *Service) lookup(ctx context.Context, host string) (dnsmessage.RCode, netip.Addr) {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return dnsmessage.RCodeSuccess, netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if host == "" || strings.HasSuffix(host, ".arpa") {
		return dnsmessage.RCodeNameError, netip.Addr{}
	}
	short := s.searched(host)
	if short != "" {
		// The resolver asks for the name without the domain last. If that is allowed, the
		// program means it, although a rule for every name allows this one as well.
		ports, err := s.ports(ctx, short)
		if err != nil {
			return dnsmessage.RCodeServerFailure, netip.Addr{}
		}
		if len(ports) > 0 {
			return dnsmessage.RCodeNameError, netip.Addr{}
		}
	}
	ports, err := s.ports(ctx, host)
	if err != nil {
		return dnsmessage.RCodeServerFailure, netip.Addr{}
	}
	if len(ports) == 0 {
		if short == "" {
			s.refused.add(host, "no rule allows this name")
		}
		return dnsmessage.RCodeNameError, netip.Addr{}
	}
	addr, err := s.names.listen(host, ports)
	if err != nil {
		return dnsmessage.RCodeServerFailure, netip.Addr{}
	}
	return dnsmessage.RCodeSuccess, addr
}

// reply returns a reply with one address, or none.
func reply(head dnsmessage.Header, question dnsmessage.Question, code dnsmessage.RCode, addr netip.Addr) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode, Authoritative: true,
		RecursionDesired: head.RecursionDesired, RecursionAvailable: true, RCode: code,
	})
	b.EnableCompression()
	if b.StartQuestions() != nil || b.Question(question) != nil || b.StartAnswers() != nil {
		return nil
	}
	if addr.IsValid() {
		header := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: answerTTL}
		if b.AResource(header, dnsmessage.AResource{A: addr.As4()}) != nil {
			return nil
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}
