#include "textflag.h"

// func clone(number, a1, a2, a3, a4, entry uintptr, c *child) (pid, errno uintptr)
//
// The child calls entry by Go's register convention, with c as its argument.
// It has no goroutine: what it calls must not look at one.
TEXT ·clone(SB),NOSPLIT,$0-72
	MOVQ	number+0(FP), AX
	MOVQ	a1+8(FP), DI
	MOVQ	a2+16(FP), SI
	MOVQ	a3+24(FP), DX
	MOVQ	a4+32(FP), R10
	MOVQ	entry+40(FP), R12
	MOVQ	c+48(FP), R13
	XORL	R8, R8
	XORL	R9, R9
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+56(FP)
	MOVQ	$0, errno+64(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+56(FP)
	MOVQ	AX, errno+64(FP)
	RET
child:
	XORPS	X15, X15
	MOVQ	R13, AX
	CALL	R12
	INT	$3
