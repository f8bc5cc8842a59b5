// SPDX-License-Identifier: Apache-2.0
/*
 * A program's CU mask, moved into the lease's CUs. Programs see all CUs of the device and choose among them:
 * a choice inside the lease's is kept; of any other, the k-th CU asked becomes the k-th CU leased, so that the count
 * holds as far as the lease reaches. CUs that must stay together (WGP pairs of RDNA) count as one. Never empty: an
 * empty mask is none at all.
 */
#include "hook.h"

static int unit_any(const uint32_t *mask, uint32_t words, uint32_t bit, uint32_t unit)
{
	uint32_t found = 0;

	for (uint32_t i = bit; i < bit + unit && i / 32 < words; i++)
		found |= mask[i / 32] >> i % 32 & 1;
	return (int)found;
}

static int unit_all(const uint32_t *mask, uint32_t bit, uint32_t unit)
{
	for (uint32_t i = bit; i < bit + unit; i++)
		if (!(mask[i / 32] >> i % 32 & 1))
			return 0;
	return 1;
}

static void set_unit(uint32_t *mask, uint32_t bit, uint32_t unit)
{
	for (uint32_t i = bit; i < bit + unit; i++)
		mask[i / 32] |= 1u << i % 32;
}

/* `granted` is a mask of device->mask_bits bits for an asked one of `bits` bits. */
void cumask_map(const struct limits_device *device, const uint32_t *asked, uint32_t bits,
		uint32_t granted[MASK_WORDS])
{
	const uint32_t unit = device->unit, words = bits / 32 < MASK_WORDS ? bits / 32 : MASK_WORDS;
	const uint32_t cus = device->cus && device->cus < MASK_WORDS * 32 ? device->cus : MASK_WORDS * 32;
	uint32_t wanted = 0, outside = 0;

	memset(granted, 0, MASK_WORDS * sizeof(*granted));
	for (uint32_t bit = 0; bit + unit <= cus; bit += unit) {
		if (!unit_any(asked, words, bit, unit))
			continue;
		wanted++;
		if (unit_all(device->mask, bit, unit))
			set_unit(granted, bit, unit);
		else
			outside++;
	}
	if (wanted && !outside)
		return;
	memset(granted, 0, MASK_WORDS * sizeof(*granted));
	if (!wanted)
		wanted = MASK_WORDS * 32;
	for (uint32_t bit = 0; bit + unit <= MASK_WORDS * 32 && wanted; bit += unit) {
		if (!unit_all(device->mask, bit, unit))
			continue;
		set_unit(granted, bit, unit);
		wanted--;
	}
}
