/* What the test programs take from glibc, under versions that every glibc of x86-64 has. They are linked against
 * these empty functions in place of this machine's libc.so.6 and libdl.so.2, whose default versions are newer, and
 * so the same file runs beside old and new ones. */
.macro functions names:vararg
	.irp name, \names
	.globl	\name
	.type	\name, @function
\name:
	.endr
.endm

#ifdef LIBDL
functions dlmopen, dlopen, dlsym, dlvsym
#else
functions __errno_location, __libc_start_main, ioctl, open, puts, strcmp, strerror, strncmp, syscall
#endif

.section .note.GNU-stack, "", @progbits
