package nodev1

import "google.golang.org/grpc"

// Limits of Session streams. They are part of the protocol.
const (
	// MaxSessions is the number of sessions on a node at a time. Both ends refuse more.
	MaxSessions = 256
	// Window is how much of one stream is on its way or waits for a reader that does not read.
	// HTTP/2 then stops the sender. Each end sets it for what it receives. It is fixed, because
	// gRPC would otherwise let it grow up to 16 MiB on a fast network.
	Window = 256 << 10
	// ConnectionWindow is how much of all streams of a connection may be on its way. gRPC returns
	// it when data arrives, so a reader that does not read takes nothing of it.
	ConnectionWindow = 1 << 20
	// Piece is the maximum data that a sender puts into one message. It is small enough that
	// sessions take turns, and large enough that the framing costs little.
	Piece = 32 << 10
	// MaxPiece is the maximum data that a receiver accepts in one message.
	MaxPiece = 64 << 10
)

// DialOptions are the options of a riklet's connection to its controller, in addition to those
// of the transport.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStaticStreamWindowSize(Window), grpc.WithStaticConnWindowSize(ConnectionWindow)}
}

// NewOutput returns a piece of a session's output. It keeps data.
func NewOutput(channel Channel, data []byte) *SessionOutput {
	return &SessionOutput{Message: &SessionOutput_Output{Output: &Output{Channel: channel, Data: data}}}
}

// NewEndOfOutput returns the message that no more output follows.
func NewEndOfOutput() *SessionOutput {
	return &SessionOutput{Message: &SessionOutput_EndOfOutput{EndOfOutput: true}}
}

// NewEnd returns the last message of a session.
func NewEnd(end *SessionEnd) *SessionOutput {
	return &SessionOutput{Message: &SessionOutput_End{End: end}}
}

// NewInput returns a piece of a session's input. It keeps data.
func NewInput(data []byte) *SessionInput {
	return &SessionInput{Message: &SessionInput_Data{Data: data}}
}

// NewEndOfInput returns the message that no more input follows.
func NewEndOfInput() *SessionInput {
	return &SessionInput{Message: &SessionInput_EndOfInput{EndOfInput: true}}
}

// NewSize returns the message that a terminal has another size.
func NewSize(width, height uint32) *SessionInput {
	return &SessionInput{Message: &SessionInput_Size{Size: &TerminalSize{Width: width, Height: height}}}
}
