/* Errors of files for one program, where no file system can be mounted: LD_PRELOAD (ld.so(8)) of this library.
 *
 * The file named by $RESIL_INJECT_FILES says what fails now, in one line; without it everything passes:
 *     UNTIL ERRNO CLASSES DELAY_US BYTES_PER_S DIRECTORY
 * UNTIL is in seconds since 1970: a line that nobody deletes ends by itself. It is looked at every 0.2 s. A call whose
 * class is in CLASSES and whose file is below DIRECTORY fails with ERRNO, as the pages of open(2), read(2), write(2),
 * fsync(2), mkdir(2), rename(2), unlink(2), truncate(2), fallocate(2), stat(2) and statvfs(3) have them.
 * Not seen: memory maps, io_uring, copy_file_range(2), programs linked statically, what a FILE reads.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LOOK = 1, READ = 2, WRITE = 4, SYNC = 8, CHANGE = 16, MKDIR = 32, FULL = 64 };
struct fault { long until; int error, classes; long delay_us, rate; char directory[PATH_MAX]; };
static struct fault faults[2], *now = &faults[0];
static long long looked_ns;
static int looking;
static __thread int inside;

/* Read the file again if it is time; threads that come meanwhile go by what was known before. */
static void look(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    long long ns = t.tv_sec * 1000000000LL + t.tv_nsec;
    if (ns - __atomic_load_n(&looked_ns, __ATOMIC_RELAXED) < 200000000LL && ns > looked_ns) return;
    if (__atomic_exchange_n(&looking, 1, __ATOMIC_ACQUIRE)) return;
    struct fault *next = now == &faults[0] ? &faults[1] : &faults[0];
    char text[PATH_MAX + 128] = "";
    const char *file = getenv("RESIL_INJECT_FILES");
    int fd = file ? (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC) : -1;
    long size = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    if (size <= 0 || sscanf(text, "%ld %d %d %ld %ld %4095[^\n]", &next->until, &next->error, &next->classes,
                            &next->delay_us, &next->rate, next->directory) != 6 || next->until <= t.tv_sec)
        next->classes = 0;
    __atomic_store_n(&now, next, __ATOMIC_RELEASE);
    __atomic_store_n(&looked_ns, ns, __ATOMIC_RELAXED);
    __atomic_store_n(&looking, 0, __ATOMIC_RELEASE);
}

/* Whether a file is below the directory of the fault: a path, or (path NULL) an open descriptor. */
static int below(const struct fault *f, int dirfd, const char *path) {
    char link[64], full[2 * PATH_MAX] = "", real[PATH_MAX];
    if (!path || (path[0] != '/' && dirfd != AT_FDCWD)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
        long n = syscall(SYS_readlinkat, AT_FDCWD, link, full, PATH_MAX - 1);
        full[n > 0 ? n : 0] = 0;
    } else if (path[0] != '/' && !getcwd(full, PATH_MAX)) return 0;
    if (path) snprintf(full + strlen(full), PATH_MAX, "/%s", path);
    char *slash = strrchr(full, '/');
    if (path && !realpath(full, real) && slash) *slash = 0; /* not there yet: its directory is */
    if (path && realpath(full, real)) snprintf(full, sizeof full, "%s", real);
    size_t n = strlen(f->directory);
    return strncmp(full, f->directory, n) == 0 && (full[n] == '/' || full[n] == 0);
}

/* Wait as the fault has it, and return the error of a call, or 0. */
static int fault(int class, int dirfd, const char *path, size_t bytes) {
    if (inside) return 0;
    int before = errno, error = 0;
    inside = 1;
    look();
    struct fault f = { .classes = 0 }, *seen = __atomic_load_n(&now, __ATOMIC_ACQUIRE);
    if (seen->classes && (seen->delay_us || seen->rate || seen->classes & class)) f = *seen;
    if (f.classes && below(&f, dirfd, path)) {
        long long us = f.delay_us + (f.rate ? (long long)bytes * 1000000 / f.rate : 0);
        struct timespec t = { us / 1000000, us % 1000000 * 1000 };
        if (us) nanosleep(&t, NULL);
        if (f.classes & class) error = f.error;
    }
    inside = 0;
    errno = before;
    return error;
}

#define FAIL(class, dirfd, path, bytes, failed) \
    do { int e = fault(class, dirfd, path, bytes); if (e) { errno = e; return failed; } } while (0)
#define WRAP(type, name, parameters, arguments, class, dirfd, path, bytes, failed)                   \
    type name parameters {                                                                           \
        static type(*real) parameters;                                                               \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                        \
        FAIL(class, dirfd, path, bytes, failed);                                                     \
        return real arguments;                                                                       \
    }
#define OPEN(name, parameters, arguments, dirfd)                                                     \
    int name parameters {                                                                            \
        static int(*real) parameters;                                                                \
        va_list list;                                                                                \
        va_start(list, flags);                                                                       \
        int mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, int) : 0;      \
        va_end(list);                                                                                \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                        \
        FAIL((flags & (O_ACCMODE | O_CREAT | O_TRUNC)) == 0 ? LOOK : LOOK | CHANGE, dirfd, path, 0, -1); \
        return real arguments;                                                                       \
    }
#define F int fd
#define P const char *path
OPEN(open, (P, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(open64, (P, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(openat, (F, P, int flags, ...), (fd, path, flags, mode), fd)
OPEN(openat64, (F, P, int flags, ...), (fd, path, flags, mode), fd)
#define FOPEN(name) WRAP(FILE *, name, (P, const char *how), (path, how), how[0] == 'r' && !strchr(how, '+') ? LOOK : LOOK | CHANGE, AT_FDCWD, path, 0, NULL)
FOPEN(fopen) FOPEN(fopen64)
WRAP(ssize_t, read, (F, void *to, size_t n), (fd, to, n), READ, fd, NULL, n, -1)
WRAP(ssize_t, pread, (F, void *to, size_t n, off_t at), (fd, to, n, at), READ, fd, NULL, n, -1)
WRAP(ssize_t, pread64, (F, void *to, size_t n, off64_t at), (fd, to, n, at), READ, fd, NULL, n, -1)
WRAP(ssize_t, write, (F, const void *from, size_t n), (fd, from, n), WRITE | FULL, fd, NULL, n, -1)
WRAP(ssize_t, writev, (F, const struct iovec *v, int n), (fd, v, n), WRITE | FULL, fd, NULL, 0, -1)
WRAP(ssize_t, pwrite, (F, const void *from, size_t n, off_t at), (fd, from, n, at), WRITE | FULL, fd, NULL, n, -1)
WRAP(ssize_t, pwrite64, (F, const void *from, size_t n, off64_t at), (fd, from, n, at), WRITE | FULL, fd, NULL, n, -1)
WRAP(ssize_t, sendfile, (F, int in, off_t *at, size_t n), (fd, in, at, n), WRITE | FULL, fd, NULL, n, -1)
WRAP(size_t, fwrite, (const void *from, size_t size, size_t n, FILE *file), (from, size, n, file), WRITE | FULL, fileno(file), NULL, size * n, 0)
WRAP(int, fallocate, (F, int mode, off_t at, off_t n), (fd, mode, at, n), WRITE | FULL, fd, NULL, 0, -1)
WRAP(int, fsync, (F), (fd), SYNC, fd, NULL, 0, -1)
WRAP(int, fdatasync, (F), (fd), SYNC, fd, NULL, 0, -1)
WRAP(int, ftruncate, (F, off_t n), (fd, n), CHANGE, fd, NULL, 0, -1)
WRAP(int, ftruncate64, (F, off64_t n), (fd, n), CHANGE, fd, NULL, 0, -1)
WRAP(int, truncate, (P, off_t n), (path, n), CHANGE, AT_FDCWD, path, 0, -1)
WRAP(int, mkdir, (P, mode_t mode), (path, mode), CHANGE | MKDIR, AT_FDCWD, path, 0, -1)
WRAP(int, mkdirat, (F, P, mode_t mode), (fd, path, mode), CHANGE | MKDIR, fd, path, 0, -1)
WRAP(int, rmdir, (P), (path), CHANGE, AT_FDCWD, path, 0, -1)
WRAP(int, unlink, (P), (path), CHANGE, AT_FDCWD, path, 0, -1)
WRAP(int, unlinkat, (F, P, int flags), (fd, path, flags), CHANGE, fd, path, 0, -1)
WRAP(int, rename, (P, const char *to), (path, to), CHANGE, AT_FDCWD, to, 0, -1)
WRAP(int, renameat, (int from, P, F, const char *to), (from, path, fd, to), CHANGE, fd, to, 0, -1)
WRAP(int, renameat2, (int from, P, F, const char *to, unsigned flags), (from, path, fd, to, flags), CHANGE, fd, to, 0, -1)
WRAP(int, link, (P, const char *to), (path, to), CHANGE, AT_FDCWD, to, 0, -1)
WRAP(int, linkat, (int from, P, F, const char *to, int flags), (from, path, fd, to, flags), CHANGE, fd, to, 0, -1)
WRAP(int, symlink, (P, const char *to), (path, to), CHANGE, AT_FDCWD, to, 0, -1)
WRAP(DIR *, opendir, (P), (path), LOOK, AT_FDCWD, path, 0, NULL)
WRAP(int, stat, (P, struct stat *to), (path, to), LOOK, AT_FDCWD, path, 0, -1)
WRAP(int, stat64, (P, struct stat64 *to), (path, to), LOOK, AT_FDCWD, path, 0, -1)
WRAP(int, lstat, (P, struct stat *to), (path, to), LOOK, AT_FDCWD, path, 0, -1)
WRAP(int, lstat64, (P, struct stat64 *to), (path, to), LOOK, AT_FDCWD, path, 0, -1)
WRAP(int, fstatat, (F, P, struct stat *to, int flags), (fd, path, to, flags), LOOK, fd, path, 0, -1)
WRAP(int, fstatat64, (F, P, struct stat64 *to, int flags), (fd, path, to, flags), LOOK, fd, path, 0, -1)
WRAP(int, __xstat, (int v, P, struct stat *to), (v, path, to), LOOK, AT_FDCWD, path, 0, -1)
WRAP(int, __xstat64, (int v, P, struct stat64 *to), (v, path, to), LOOK, AT_FDCWD, path, 0, -1)

/* A full disk says so to those who ask before they write. */
#define STATVFS(name, type, parameter, argument, dirfd, path)                                        \
    int name(parameter, struct type *to) {                                                           \
        static int(*real)(parameter, struct type *);                                                 \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                        \
        FAIL(LOOK, dirfd, path, 0, -1);                                                              \
        int result = real(argument, to);                                                             \
        if (result == 0 && fault(FULL, dirfd, path, 0)) to->f_bfree = to->f_bavail = 0;               \
        return result;                                                                               \
    }
STATVFS(statvfs, statvfs, P, path, AT_FDCWD, path)
STATVFS(statvfs64, statvfs64, P, path, AT_FDCWD, path)
STATVFS(fstatvfs, statvfs, F, fd, fd, NULL)
STATVFS(fstatvfs64, statvfs64, F, fd, fd, NULL)
