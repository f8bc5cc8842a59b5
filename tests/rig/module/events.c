// SPDX-License-Identifier: GPL-2.0
/*
 * fakegpu - what the kernel announces of a card. core.c says what it all is.
 *
 * A card is a DRM device below a device named like its PCI function, so that both are on the path of its
 * uevents. It has no device node.
 *
 * The fault "wedge", for root to write at any time: "PCI [PID [TASK]]" has the card announce a reset that its
 * driver got over by itself, as drm_dev_wedged_event() does; with the guilty task, where one is given.
 */

#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "fakegpu.h"

static const struct class fg_drm_class = { .name = "drm" };

int fg_cards_init(void)
{
	return class_register(&fg_drm_class);
}

void fg_cards_exit(void)
{
	class_unregister(&fg_drm_class);
}

int fg_add_card(struct fg_gpu *g, const char *pci)
{
	g->function = root_device_register(pci);
	if (IS_ERR(g->function))
		return PTR_ERR(g->function);
	g->card = device_create(&fg_drm_class, g->function, MKDEV(0, 0), g, "card%d", (int)(g - fg_gpus));
	if (IS_ERR(g->card)) {
		root_device_unregister(g->function);
		return PTR_ERR(g->card);
	}
	return 0;
}

void fg_remove_card(struct fg_gpu *g)
{
	device_unregister(g->card);
	root_device_unregister(g->function);
}

static struct fg_gpu *fg_find_card(const char *pci)
{
	int i;

	for (i = 0; i < fg_nr; i++)
		if (!strcmp(dev_name(fg_gpus[i].function), pci))
			return &fg_gpus[i];
	return NULL;
}

static int fg_wedge(const char *text, const struct kernel_param *kp)
{
	char pci[16], task[TASK_COMM_LEN], pid_var[20], task_var[8 + TASK_COMM_LEN];
	char *envp[] = { "WEDGED=none", NULL, NULL, NULL };
	struct fg_gpu *g;
	int told, pid;

	told = sscanf(text, "%15s %d %15s", pci, &pid, task);
	if (told < 1)
		return -EINVAL;
	g = fg_find_card(pci);
	if (!g)
		return -ENODEV;
	if (told > 1) {
		snprintf(pid_var, sizeof(pid_var), "PID=%d", pid);
		envp[1] = pid_var;
	}
	if (told > 2) {
		snprintf(task_var, sizeof(task_var), "TASK=%s", task);
		envp[2] = task_var;
	}
	return kobject_uevent_env(&g->card->kobj, KOBJ_CHANGE, envp);
}

static const struct kernel_param_ops fg_wedge_ops = { .set = fg_wedge };
module_param_cb(wedge, &fg_wedge_ops, NULL, 0200);
MODULE_PARM_DESC(wedge, "PCI [PID [TASK]]: announce that this card was reset");
