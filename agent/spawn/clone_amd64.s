#include "textflag.h"

// func clone(flags, stack uintptr, pidfd *int32, entry uintptr, c *child) (pid, errno uintptr)
//
// The child calls entry by Go's register convention, with c as its argument,
// on the given stack. It has no goroutine: what it calls must not look at one.
TEXT ·clone(SB),NOSPLIT,$0-56
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	pidfd+16(FP), DX
	MOVQ	entry+24(FP), R12
	MOVQ	c+32(FP), R13
	XORL	R10, R10
	XORL	R8, R8
	XORL	R9, R9
	MOVL	$56, AX // clone
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+40(FP)
	MOVQ	$0, errno+48(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+40(FP)
	MOVQ	AX, errno+48(FP)
	RET
child:
	XORPS	X15, X15
	MOVQ	R13, AX
	CALL	R12
	INT	$3

// func clone3(args *cloneArgs, entry uintptr, c *child) (pid, errno uintptr)
TEXT ·clone3(SB),NOSPLIT,$0-40
	MOVQ	args+0(FP), DI
	MOVQ	$88, SI // the size of cloneArgs
	MOVQ	entry+8(FP), R12
	MOVQ	c+16(FP), R13
	MOVL	$435, AX // clone3
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+24(FP)
	MOVQ	AX, errno+32(FP)
	RET
child:
	XORPS	X15, X15
	MOVQ	R13, AX
	CALL	R12
	INT	$3
