/*
 * A HIP program as users write them: each word of its command line is one step, each step prints one line.
 * Built against the machine's HIP headers; run against whatever HIP is there.
 */
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name(hipError_t code)
{
	return hipGetErrorName(code);
}

/* "malloc=<MiB>", "async=<MiB>", "managed=<MiB>": allocate and keep. */
static void allocate(const char *how, size_t mib)
{
	void *memory = NULL;
	hipError_t code;

	if (!strcmp(how, "async")) {
		hipStream_t made; /* HIP 5.2 dies of a null stream here */

		code = hipStreamCreate(&made);
		if (code == hipSuccess)
			code = hipMallocAsync(&memory, mib << 20, made);
	} else if (!strcmp(how, "managed")) {
		code = hipMallocManaged(&memory, mib << 20, hipMemAttachGlobal);
	} else {
		code = hipMalloc(&memory, mib << 20);
	}
	/* HIP 5.2's hipMallocAsync says success with no memory when the kernel refused. */
	printf("%s %zu %s\n", how, mib, code == hipSuccess && !memory ? "nothing" : name(code));
	if (memory && !strcmp(how, "cycle"))
		printf("free %s\n", name(hipFree(memory)));
}

/* "info": free and total in MiB. */
static void info(void)
{
	size_t free_bytes = 0, total = 0;
	hipError_t code = hipMemGetInfo(&free_bytes, &total);

	printf("info %zu %zu %s\n", free_bytes >> 20, total >> 20, name(code));
}

/* "priority=<N>": a stream of HIP's priority N, -1 high to 1 low, used once. */
static void prioritized(int priority)
{
	hipStream_t made;
	hipEvent_t event;
	hipError_t code = hipStreamCreateWithPriority(&made, hipStreamNonBlocking, priority);

	if (code == hipSuccess)
		code = hipEventCreate(&event);
	if (code == hipSuccess)
		code = hipEventRecord(event, made);
	if (code == hipSuccess)
		code = hipStreamSynchronize(made);
	printf("priority %d %s\n", priority, name(code));
}

/* "stream" and "mask=<hex>": a stream, plain or with a CU mask of 64 bits, used once. */
static void stream(const char *mask)
{
	hipStream_t made;
	uint64_t bits = mask ? strtoull(mask, NULL, 16) : 0;
	uint32_t words[2] = { (uint32_t)bits, (uint32_t)(bits >> 32) };
	hipError_t code = mask ? hipExtStreamCreateWithCUMask(&made, 2, words) : hipStreamCreate(&made);

	printf("stream %s %s\n", mask ? mask : "-", name(code));
	if (code == hipSuccess) {
		hipEvent_t event;

		code = hipEventCreate(&event);
		if (code == hipSuccess)
			code = hipEventRecord(event, made);
		if (code == hipSuccess)
			code = hipStreamSynchronize(made);
		printf("used %s\n", name(code));
	}
}

int main(int count, char **words)
{
	for (int i = 1; i < count; i++) {
		char *value = strchr(words[i], '=');
		int devices = 0;

		if (value)
			*value++ = '\0';
		if (!strcmp(words[i], "devices")) {
			hipError_t code = hipGetDeviceCount(&devices);

			printf("devices %d %s\n", devices, name(code));
		} else if (!strcmp(words[i], "device")) {
			printf("device %s %s\n", value, name(hipSetDevice(atoi(value))));
		} else if (!strcmp(words[i], "info")) {
			info();
		} else if (!strcmp(words[i], "stream") || !strcmp(words[i], "mask")) {
			stream(value);
		} else if (!strcmp(words[i], "priority")) {
			prioritized(atoi(value));
		} else if (!strcmp(words[i], "stay")) {
			puts("stay");
			fflush(stdout);
			getchar();
		} else {
			allocate(words[i], strtoull(value, NULL, 10));
		}
		fflush(stdout);
	}
	/* HIP's own clean-up at exit is not what is tested. */
	_exit(0);
}
