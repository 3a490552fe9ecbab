#include "textflag.h"

// func clone(number, a1, a2, a3, entry uintptr, c *child) (pid, errno uintptr)
//
// The child calls entry by Go's register convention, with c as its argument.
// It has no goroutine: what it calls must not look at one.
TEXT ·clone(SB),NOSPLIT,$0-64
	MOVQ	number+0(FP), AX
	MOVQ	a1+8(FP), DI
	MOVQ	a2+16(FP), SI
	MOVQ	a3+24(FP), DX
	MOVQ	entry+32(FP), R12
	MOVQ	c+40(FP), R13
	XORL	R10, R10
	XORL	R8, R8
	XORL	R9, R9
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+48(FP)
	MOVQ	$0, errno+56(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+48(FP)
	MOVQ	AX, errno+56(FP)
	RET
child:
	XORPS	X15, X15
	MOVQ	R13, AX
	CALL	R12
	INT	$3
