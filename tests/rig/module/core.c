// SPDX-License-Identifier: GPL-2.0
/*
 * fakegpu - GPUs of which only the bookkeeping is real.
 *
 * A test double for those parts of amdgpu and KFD that an agent sees which shares GPUs:
 *
 *	drm/PCI/vram		one dmem region a GPU, named as amdgpu names it
 *	/dev/dri/renderDN	one device a GPU, with the numbers of a render node (226:N)
 *	/sys/class/drm/cardN	one a GPU, to announce resets: events.c
 *	/dev/kfd		makes its opener known, and takes KFD's ioctls for memory
 *	/sys/class/kfd/kfd/proc/PID/vram_GPUID
 *				bytes that PID holds, from its first open of one of these until its last close
 *
 * No memory is allocated, only charged: by dmem_cgroup_try_charge() in the context of the calling task, so
 * the kernel's own accounting and enforcement are what is exercised.
 *
 * Both take the ioctls by which programs have VRAM: ioctl.c. For shells and for tests that want no more than a
 * buffer, a render node also takes one command a write(2), in text:
 *
 *	alloc SIZE	a buffer of SIZE bytes (K, M, G; rounded up to a page, as a GEM object is).
 *			Fails with ENOMEM at a dmem limit and on a full board, as amdgpu does.
 *	free ID		drop one buffer
 *	free all	drop all buffers of this open file
 *
 * and gives "ID SIZE vram|evicted" lines to read(2). A file's buffers go with its last close, so at the latest
 * with its process. The order then is KFD's: first the entry in /sys vanishes, then the charge.
 *
 * Faults, for root to set in /sys/module/fakegpu/parameters at any time:
 *
 *	free_delay_ms	charges go that long after the close; -1: not before this is changed again
 *	hang		"alloc" or "close": who does that sleeps uninterruptibly (state D) until this reads "never";
 *			an alloc is charged before, a close's charge is freed after. Closing without a buffer never hangs.
 *	limit_errno	what an alloc over a limit fails with; 0: the controller's own EAGAIN
 *	wedge		the PCI address of a card that announces its reset: events.c
 */

#include <linux/cdev.h>
#include <linux/cgroup_dmem.h>
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "fakegpu.h"

#define FG_DRM_MAJOR	226
#define FG_MINORS	256
/* Registering a region took a bare size until 7.3, which has the driver reclaim when a limit is lowered. */
#define FG_HAVE_RECLAIM	(LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0))

/* tests/machines/mi300x-spx.json; a card in SPX leaves room for the render nodes of eight partitions. */
static char *gpus = "0000:05:00.0=206141652992:4097:128,0000:27:00.0=206141652992:4098:136,"
		    "0000:47:00.0=206141652992:4099:144,0000:65:00.0=206141652992:4100:152,"
		    "0000:85:00.0=206141652992:4101:160,0000:a7:00.0=206141652992:4102:168,"
		    "0000:c7:00.0=206141652992:4103:176,0000:e5:00.0=206141652992:4104:184";
module_param(gpus, charp, 0444);
MODULE_PARM_DESC(gpus, "comma separated PCI=SIZE:GPU_ID:RENDER_MINOR");

static int limit_errno = ENOMEM;
module_param(limit_errno, int, 0644);
MODULE_PARM_DESC(limit_errno, "errno at a dmem limit (0: the controller's own)");

static bool reclaim = true;
module_param(reclaim, bool, 0444);
MODULE_PARM_DESC(reclaim, "evict buffers when dmem.max drops below the usage (from 7.3 on)");

struct fg_gpu fg_gpus[FG_MAX_GPUS];
int fg_nr;
static struct cdev fg_render_cdev, fg_kfd_cdev;
static dev_t fg_kfd_devt;
static struct kobject *fg_proc;		/* /sys/class/kfd/kfd/proc */
static LIST_HEAD(fg_processes);
static LIST_HEAD(fg_late);		/* buffers that outlive their file */

DEFINE_MUTEX(fg_lock);
/* Processes coming and going; apart from fg_lock, which readers of the entries take while they are removed. */
static DEFINE_MUTEX(fg_processes_lock);

/* --- faults ----------------------------------------------------------------------------------------- */

static int free_delay_ms;

static void fg_free_late(struct work_struct *work);
static DECLARE_DELAYED_WORK(fg_late_work, fg_free_late);

static int fg_set_delay(const char *text, const struct kernel_param *kp)
{
	int ret = param_set_int(text, kp);

	if (fg_nr) {
		cancel_delayed_work(&fg_late_work);
		schedule_delayed_work(&fg_late_work, 0);
	}
	return ret;
}

static const struct kernel_param_ops fg_delay_ops = { .set = fg_set_delay, .get = param_get_int };
module_param_cb(free_delay_ms, &fg_delay_ops, &free_delay_ms, 0644);
MODULE_PARM_DESC(free_delay_ms, "free charges that long after the close; -1: not before this changes");

enum fg_hang { FG_HANG_NEVER, FG_HANG_ALLOC, FG_HANG_CLOSE };
static const char * const fg_hang_names[] = { "never", "alloc", "close" };
static enum fg_hang fg_hang;
static DECLARE_WAIT_QUEUE_HEAD(fg_hung);

static int fg_set_hang(const char *text, const struct kernel_param *kp)
{
	int found = __sysfs_match_string(fg_hang_names, ARRAY_SIZE(fg_hang_names), text);

	if (found < 0)
		return found;
	WRITE_ONCE(fg_hang, found);
	wake_up_all(&fg_hung);
	return 0;
}

static int fg_get_hang(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%s\n", fg_hang_names[fg_hang]);
}

static const struct kernel_param_ops fg_hang_ops = { .set = fg_set_hang, .get = fg_get_hang };
module_param_cb(hang, &fg_hang_ops, NULL, 0644);
MODULE_PARM_DESC(hang, "never, alloc or close: sleep uninterruptibly there");

static void fg_maybe_hang(enum fg_hang where)
{
	wait_event(fg_hung, READ_ONCE(fg_hang) != where);
}

void fg_hang_after_alloc(void)
{
	fg_maybe_hang(FG_HANG_ALLOC);
}

/* --- buffers ---------------------------------------------------------------------------------------- */

static void fg_uncharge(struct fg_buffer *b)
{
	if (!b->pool)
		return;
	dmem_cgroup_uncharge(b->pool, b->size);
	b->pool = NULL;
	b->gpu->used -= b->size;
}

static void fg_free(struct fg_buffer *b)
{
	fg_uncharge(b);
	list_del(&b->in_file);
	list_del(&b->in_gpu);
	kfree(b);
}

static void fg_free_late(struct work_struct *work)
{
	struct fg_buffer *b, *next;
	int delay = READ_ONCE(free_delay_ms);

	mutex_lock(&fg_lock);
	list_for_each_entry_safe(b, next, &fg_late, in_file)
		if (delay >= 0 && time_after_eq(jiffies, b->closed + msecs_to_jiffies(delay)))
			fg_free(b);
	if (delay > 0 && !list_empty(&fg_late))
		schedule_delayed_work(&fg_late_work, 1);
	mutex_unlock(&fg_lock);
}

int fg_alloc(struct fg_file *f, struct fg_gpu *g, u64 size)
{
	struct fg_buffer *b;
	int ret;

	if (!size)
		return -EINVAL;
	if (size > g->size)
		return -ENOMEM;
	size = PAGE_ALIGN(size);

	b = kzalloc(sizeof(*b), GFP_KERNEL);
	if (!b)
		return -ENOMEM;

	/* TTM's order: first the charge, then the memory. */
	ret = dmem_cgroup_try_charge(g->region, size, &b->pool, NULL);
	if (ret) {
		if (ret == -EAGAIN && limit_errno > 0)
			ret = -limit_errno;
		goto err_free;
	}
	if (g->used + size > g->size) {
		ret = -ENOMEM;
		goto err_uncharge;
	}

	b->gpu = g;
	b->id = f->next_id++;
	b->size = size;
	g->used += size;
	f->process->vram[g - fg_gpus] += size;
	list_add_tail(&b->in_file, &f->buffers);
	list_add_tail(&b->in_gpu, &g->buffers);
	return b->id;

err_uncharge:
	dmem_cgroup_uncharge(b->pool, size);
err_free:
	kfree(b);
	return ret;
}

int fg_drop(struct fg_file *f, unsigned int id, bool all)
{
	struct fg_buffer *b, *next;
	int ret = all ? 0 : -ENOENT;

	list_for_each_entry_safe(b, next, &f->buffers, in_file) {
		if (!all && b->id != id)
			continue;
		f->process->vram[b->gpu - fg_gpus] -= b->size;
		fg_free(b);
		ret = 0;
	}
	return ret;
}

#if FG_HAVE_RECLAIM
/*
 * A write to dmem.max leaves @pool over its new limit. Whether a buffer is charged to @pool or below it only
 * the controller knows; dmem_cgroup_state_evict_valuable() is how TTM asks it, too.
 */
static int fg_reclaim(struct dmem_cgroup_pool_state *pool, u64 target, void *priv)
{
	struct fg_gpu *g = priv;
	struct fg_buffer *b;
	u64 freed = 0;
	bool hit_low;

	mutex_lock(&fg_lock);
	list_for_each_entry(b, &g->buffers, in_gpu) {
		if (freed >= target)
			break;
		if (!b->pool || !dmem_cgroup_state_evict_valuable(pool, b->pool, true, &hit_low))
			continue;
		freed += b->size;
		fg_uncharge(b);
	}
	mutex_unlock(&fg_lock);
	return freed ? 0 : -ENOSPC;
}

static const struct dmem_cgroup_ops fg_dmem_ops = { .reclaim = fg_reclaim };

static struct dmem_cgroup_region *fg_register(struct fg_gpu *g, const char *pci)
{
	const struct dmem_cgroup_init init = {
		.size = g->size,
		.ops = reclaim ? &fg_dmem_ops : NULL,
		.reclaim_priv = g,
	};

	return dmem_cgroup_register_region(&init, "drm/%s/vram", pci);
}
#else
static struct dmem_cgroup_region *fg_register(struct fg_gpu *g, const char *pci)
{
	return dmem_cgroup_register_region(g->size, "drm/%s/vram", pci);
}
#endif

/* --- processes, as /sys/class/kfd/kfd/proc shows them ------------------------------------------------ */

static ssize_t fg_show_vram(struct kobject *kobj, struct attribute *attr, char *text)
{
	struct fg_process *p = container_of(kobj, struct fg_process, kobj);
	struct fg_gpu *g = container_of(attr, struct fg_gpu, vram_attr);
	u64 bytes;

	mutex_lock(&fg_lock);
	bytes = p->vram[g - fg_gpus];
	mutex_unlock(&fg_lock);
	return sysfs_emit(text, "%llu\n", bytes);
}

static void fg_process_release(struct kobject *kobj)
{
	kfree(container_of(kobj, struct fg_process, kobj));
}

static struct attribute *fg_vram_attrs[FG_MAX_GPUS + 1];
ATTRIBUTE_GROUPS(fg_vram);
static const struct sysfs_ops fg_vram_ops = { .show = fg_show_vram };
static const struct kobj_type fg_process_type = {
	.release = fg_process_release,
	.sysfs_ops = &fg_vram_ops,
	.default_groups = fg_vram_groups,
};

static struct fg_process *fg_new_process(pid_t pid)
{
	struct fg_process *p = kzalloc(sizeof(*p), GFP_KERNEL);

	if (!p)
		return NULL;
	p->pid = pid;
	if (kobject_init_and_add(&p->kobj, &fg_process_type, fg_proc, "%d", pid)) {
		kobject_put(&p->kobj);
		return NULL;
	}
	list_add(&p->node, &fg_processes);
	return p;
}

static struct fg_process *fg_get_process(void)
{
	pid_t pid = task_tgid_nr(current);
	struct fg_process *p;

	mutex_lock(&fg_processes_lock);
	list_for_each_entry(p, &fg_processes, node)
		if (p->pid == pid)
			goto found;
	p = fg_new_process(pid);
found:
	if (p)
		p->files++;
	mutex_unlock(&fg_processes_lock);
	return p;
}

static void fg_put_process(struct fg_process *p)
{
	mutex_lock(&fg_processes_lock);
	if (!--p->files) {
		list_del(&p->node);
		kobject_del(&p->kobj);
		kobject_put(&p->kobj);
	}
	mutex_unlock(&fg_processes_lock);
}

/* --- files ------------------------------------------------------------------------------------------ */

static int fg_open_gpu(struct file *file, struct fg_gpu *gpu)
{
	struct fg_file *f = kzalloc(sizeof(*f), GFP_KERNEL);

	if (!f)
		return -ENOMEM;
	f->process = fg_get_process();
	if (!f->process) {
		kfree(f);
		return -ENOMEM;
	}
	f->gpu = gpu;
	f->next_id = 1;
	INIT_LIST_HEAD(&f->buffers);
	file->private_data = f;
	return 0;
}

static int fg_open_render(struct inode *inode, struct file *file)
{
	int i;

	for (i = 0; i < fg_nr; i++)
		if (fg_gpus[i].minor == iminor(inode))
			return fg_open_gpu(file, &fg_gpus[i]);
	return -ENXIO;
}

static int fg_open_kfd(struct inode *inode, struct file *file)
{
	return fg_open_gpu(file, NULL);
}

static int fg_release(struct inode *inode, struct file *file)
{
	struct fg_file *f = file->private_data;
	struct fg_buffer *b;

	mutex_lock(&fg_lock);
	list_for_each_entry(b, &f->buffers, in_file)
		f->process->vram[b->gpu - fg_gpus] -= b->size;
	mutex_unlock(&fg_lock);
	fg_put_process(f->process);
	if (!list_empty(&f->buffers))
		fg_maybe_hang(FG_HANG_CLOSE);

	mutex_lock(&fg_lock);
	list_for_each_entry(b, &f->buffers, in_file)
		b->closed = jiffies;
	list_splice(&f->buffers, &fg_late);
	mutex_unlock(&fg_lock);
	fg_free_late(NULL);
	kfree(f);
	return 0;
}

static int fg_command(struct fg_file *f, char *line)
{
	char *arg = strim(line), *verb = strsep(&arg, " \t"), *end;
	unsigned int id = 0;
	bool all;
	u64 size;

	if (!arg)
		return -EINVAL;
	arg = skip_spaces(arg);

	if (!strcmp(verb, "alloc")) {
		size = memparse(arg, &end);
		return *end ? -EINVAL : fg_alloc(f, f->gpu, size);
	}
	if (strcmp(verb, "free"))
		return -EINVAL;
	all = !strcmp(arg, "all");
	if (!all && kstrtouint(arg, 0, &id))
		return -EINVAL;
	return fg_drop(f, id, all);
}

static ssize_t fg_write(struct file *file, const char __user *ubuf, size_t len, loff_t *ppos)
{
	char line[64];
	bool alloc;
	int ret;

	if (!len || len >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, ubuf, len))
		return -EFAULT;
	line[len] = '\0';
	alloc = str_has_prefix(line, "alloc");

	mutex_lock(&fg_lock);
	ret = fg_command(file->private_data, line);
	mutex_unlock(&fg_lock);
	if (ret < 0)
		return ret;
	if (alloc)
		fg_hang_after_alloc();
	return len;
}

static ssize_t fg_read(struct file *file, char __user *ubuf, size_t len, loff_t *ppos)
{
	struct fg_file *f = file->private_data;
	struct fg_buffer *b;
	char *text = kzalloc(PAGE_SIZE, GFP_KERNEL);
	ssize_t ret;
	int n = 0;

	if (!text)
		return -ENOMEM;
	mutex_lock(&fg_lock);
	list_for_each_entry(b, &f->buffers, in_file)
		n += scnprintf(text + n, PAGE_SIZE - n, "%u %llu %s\n", b->id, b->size,
			       b->pool ? "vram" : "evicted");
	mutex_unlock(&fg_lock);
	ret = simple_read_from_buffer(ubuf, len, ppos, text, n);
	kfree(text);
	return ret;
}

static const struct file_operations fg_render_fops = {
	.owner = THIS_MODULE,
	.open = fg_open_render,
	.release = fg_release,
	.read = fg_read,
	.write = fg_write,
	.unlocked_ioctl = fg_render_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

struct fg_gpu *fg_render_gpu(struct file *file)
{
	struct fg_file *f = file->private_data;

	return file->f_op == &fg_render_fops ? f->gpu : NULL;
}

static const struct file_operations fg_kfd_fops = {
	.owner = THIS_MODULE,
	.open = fg_open_kfd,
	.release = fg_release,
	.unlocked_ioctl = fg_kfd_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/* --- devices ---------------------------------------------------------------------------------------- */

static char *fg_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return MAJOR(dev->devt) == FG_DRM_MAJOR ? kasprintf(GFP_KERNEL, "dri/%s", dev_name(dev)) : NULL;
}

static const struct class fg_render_class = { .name = "fakegpu", .devnode = fg_devnode };
static const struct class fg_kfd_class = { .name = "kfd", .devnode = fg_devnode };

/* "PCI=SIZE:GPU_ID:RENDER_MINOR" */
static int fg_parse(struct fg_gpu *g, char *spec, char **pci)
{
	char *end;

	*pci = strsep(&spec, "=");
	if (!spec || !**pci)
		return -EINVAL;
	g->size = memparse(spec, &end);
	if (!PAGE_ALIGNED(g->size) || sscanf(end, ":%u:%u", &g->gpu_id, &g->minor) != 2)
		return -EINVAL;
	return g->size && g->minor < FG_MINORS ? 0 : -EINVAL;
}

static int fg_add(char *spec)
{
	struct fg_gpu *g = &fg_gpus[fg_nr];
	struct device *dev;
	char *pci;
	int ret;

	if (fg_nr == FG_MAX_GPUS)
		return -EINVAL;
	ret = fg_parse(g, spec, &pci);
	if (ret)
		return ret;
	INIT_LIST_HEAD(&g->buffers);

	g->region = fg_register(g, pci);
	if (IS_ERR_OR_NULL(g->region))
		return g->region ? PTR_ERR(g->region) : -ENODEV;
	dev = device_create(&fg_render_class, NULL, MKDEV(FG_DRM_MAJOR, g->minor), g, "renderD%u", g->minor);
	if (IS_ERR(dev)) {
		ret = PTR_ERR(dev);
		goto err_region;
	}
	ret = fg_add_card(g, pci);
	if (ret)
		goto err_device;

	snprintf(g->vram_name, sizeof(g->vram_name), "vram_%u", g->gpu_id);
	sysfs_attr_init(&g->vram_attr);
	g->vram_attr.name = g->vram_name;
	g->vram_attr.mode = 0444;
	fg_vram_attrs[fg_nr++] = &g->vram_attr;
	return 0;

err_device:
	device_destroy(&fg_render_class, MKDEV(FG_DRM_MAJOR, g->minor));
err_region:
	dmem_cgroup_unregister_region(g->region);
	return ret;
}

static void fg_remove_all(void)
{
	while (fg_nr > 0) {
		struct fg_gpu *g = &fg_gpus[--fg_nr];

		fg_remove_card(g);
		device_destroy(&fg_render_class, MKDEV(FG_DRM_MAJOR, g->minor));
		dmem_cgroup_unregister_region(g->region);
	}
}

static int __init fg_add_all(void)
{
	char *list = kstrdup(gpus, GFP_KERNEL), *rest = list, *spec;
	int ret = list ? 0 : -ENOMEM;

	while (!ret && (spec = strsep(&rest, ",")))
		ret = fg_add(spec);
	kfree(list);
	if (ret)
		fg_remove_all();
	return ret;
}

static int __init fg_add_kfd(void)
{
	struct device *dev = device_create(&fg_kfd_class, NULL, fg_kfd_devt, NULL, "kfd");

	if (IS_ERR(dev))
		return PTR_ERR(dev);
	fg_proc = kobject_create_and_add("proc", &dev->kobj);
	if (!fg_proc) {
		device_destroy(&fg_kfd_class, fg_kfd_devt);
		return -ENOMEM;
	}
	return 0;
}

static void fg_remove_kfd(void)
{
	kobject_put(fg_proc);
	device_destroy(&fg_kfd_class, fg_kfd_devt);
}

static int __init fg_init(void)
{
	int ret;

	ret = register_chrdev_region(MKDEV(FG_DRM_MAJOR, 0), FG_MINORS, "fakegpu");
	if (ret)
		return ret;
	ret = alloc_chrdev_region(&fg_kfd_devt, 0, 1, "kfd");
	if (ret)
		goto err_render_region;
	ret = class_register(&fg_render_class);
	if (ret)
		goto err_kfd_region;
	ret = class_register(&fg_kfd_class);
	if (ret)
		goto err_render_class;
	ret = fg_cards_init();
	if (ret)
		goto err_kfd_class;
	ret = fg_add_kfd();
	if (ret)
		goto err_cards;
	ret = fg_add_all();
	if (ret)
		goto err_kfd;

	/* Last, for from here on the devices can be opened. */
	cdev_init(&fg_render_cdev, &fg_render_fops);
	ret = cdev_add(&fg_render_cdev, MKDEV(FG_DRM_MAJOR, 0), FG_MINORS);
	if (ret)
		goto err_gpus;
	cdev_init(&fg_kfd_cdev, &fg_kfd_fops);
	ret = cdev_add(&fg_kfd_cdev, fg_kfd_devt, 1);
	if (ret)
		goto err_render_cdev;
	return 0;

err_render_cdev:
	cdev_del(&fg_render_cdev);
err_gpus:
	fg_remove_all();
err_kfd:
	fg_remove_kfd();
err_cards:
	fg_cards_exit();
err_kfd_class:
	class_unregister(&fg_kfd_class);
err_render_class:
	class_unregister(&fg_render_class);
err_kfd_region:
	unregister_chrdev_region(fg_kfd_devt, 1);
err_render_region:
	unregister_chrdev_region(MKDEV(FG_DRM_MAJOR, 0), FG_MINORS);
	return ret;
}

static void __exit fg_exit(void)
{
	struct fg_buffer *b, *next;

	cdev_del(&fg_kfd_cdev);
	cdev_del(&fg_render_cdev);
	/* No file is open any more: what is left are charges that were to be freed late or never. */
	cancel_delayed_work_sync(&fg_late_work);
	list_for_each_entry_safe(b, next, &fg_late, in_file)
		fg_free(b);
	fg_remove_all();
	fg_remove_kfd();
	fg_cards_exit();
	class_unregister(&fg_kfd_class);
	class_unregister(&fg_render_class);
	unregister_chrdev_region(fg_kfd_devt, 1);
	unregister_chrdev_region(MKDEV(FG_DRM_MAJOR, 0), FG_MINORS);
}

module_init(fg_init);
module_exit(fg_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("GPUs of which only the dmem charges and the bookkeeping are real");
