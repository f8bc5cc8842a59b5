// SPDX-License-Identifier: Apache-2.0
/* The few text and memory functions that a C library would bring. */
#include "hook.h"

int text_equal(const char *a, const char *b, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

/* Append `text` and a final NUL, as far as they fit before `end`; returns where the NUL is. */
char *text_append(char *at, const char *end, const char *text)
{
	while (*text && at + 1 < end)
		*at++ = *text++;
	*at = '\0';
	return at;
}

char *text_append_number(char *at, const char *end, uint64_t number)
{
	char digits[21];
	char *first = digits + sizeof(digits) - 1;

	*first = '\0';
	do {
		*--first = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	return text_append(at, end, first);
}

/* The compiler calls these for large assignments even in freestanding code. */
void *memset(void *to, int value, size_t size)
{
	for (volatile char *at = to; size; size--)
		*at++ = (char)value;
	return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
	const char *read = from;

	for (volatile char *at = to; size; size--)
		*at++ = *read++;
	return to;
}
