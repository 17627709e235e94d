// Preload this library into a process: writes to files whose path contains FAULT_MATCH, or one of its parts between
// colons, fail with errno FAULT_ERRNO. A part may have wildcards. If FAULT_WHEN is set, they fail only once that file
// exists. With FAULT_LOCKS in place of FAULT_MATCH only their locks fail. If FAULT_LOG is set, the path of every file that is opened, made or renamed for writing is appended to it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int matches(const char *path, const char *name) {
    const char *match = getenv(name), *when = getenv("FAULT_WHEN");
    char parts[1024], pattern[1100], *rest;
    if (!match || !path || (when && access(when, F_OK))) return 0;
    snprintf(parts, sizeof parts, "%s", match);
    for (char *part = strtok_r(parts, ":", &rest); part; part = strtok_r(NULL, ":", &rest)) {
        snprintf(pattern, sizeof pattern, "*%s*", part);
        if (!fnmatch(pattern, path, 0)) {
            errno = atoi(getenv("FAULT_ERRNO"));
            return 1;
        }
    }
    return 0;
}

static int fails(const char *path) { return matches(path, "FAULT_MATCH"); }

static void logged(const char *path) {
    static int (*real)(const char *, int, ...);
    const char *log = getenv("FAULT_LOG");
    char line[4200];
    int before = errno;
    if (!log || !path) return;
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    int handle = real(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (handle >= 0) {
        static ssize_t (*put)(int, const void *, size_t);
        if (!put) put = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
        if (put(handle, line, (size_t)snprintf(line, sizeof line, "%s\n", path)) < 0) {}
        close(handle);
    }
    errno = before;
}

static int change_fails(const char *path) { logged(path); return fails(path); }

// Writes to `path` the path of an open file; returns whether it has one.
static int path_of(int handle, char *path, size_t size) {
    char link[64];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, size - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int handle_fails(int handle) {
    char path[4096];
    return getenv("FAULT_MATCH") && path_of(handle, path, sizeof path) && fails(path);
}

static int lock_fails(int handle) {
    char path[4096];
    return getenv("FAULT_LOCKS") && path_of(handle, path, sizeof path) && matches(path, "FAULT_LOCKS");
}

static int change_at_fails(int folder, const char *path) {
    char base[4096], whole[8200];
    if (!path || path[0] == '/' || folder == AT_FDCWD || !path_of(folder, base, sizeof base)) return change_fails(path);
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return change_fails(whole);
}

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))
#define OPEN(name)                                                                             \
    int name(const char *path, int flags, ...) {                                               \
        REAL(name);                                                                            \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if (WRITES(flags) && change_fails(path)) return -1;                                    \
        return real(path, flags, mode);                                                        \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                                           \
    int name(int folder, const char *path, int flags, ...) {                                   \
        REAL(name);                                                                            \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if (WRITES(flags) && change_at_fails(folder, path)) return -1;                         \
        return real(folder, path, flags, mode);                                                \
    }
OPENAT(openat)
OPENAT(openat64)
#define FOPEN(name)                                                                            \
    FILE *name(const char *path, const char *mode) {                                           \
        REAL(name);                                                                            \
        if (strpbrk(mode, "wa+") && change_fails(path)) return NULL;                           \
        return real(path, mode);                                                               \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define UNLESS(condition, result, ...) return (condition) ? (result) : real(__VA_ARGS__)
int fflush(FILE *file) { REAL(fflush); UNLESS(file && handle_fails(fileno(file)), EOF, file); }
ssize_t write(int handle, const void *data, size_t size) { REAL(write); UNLESS(handle_fails(handle), -1, handle, data, size); }
ssize_t writev(int handle, const struct iovec *data, int count) { REAL(writev); UNLESS(handle_fails(handle), -1, handle, data, count); }
ssize_t pwrite(int handle, const void *data, size_t size, off_t at) { REAL(pwrite); UNLESS(handle_fails(handle), -1, handle, data, size, at); }
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) { REAL(pwrite64); UNLESS(handle_fails(handle), -1, handle, data, size, at); }
ssize_t pwritev(int handle, const struct iovec *data, int count, off_t at) { REAL(pwritev); UNLESS(handle_fails(handle), -1, handle, data, count, at); }
ssize_t pwritev64(int handle, const struct iovec *data, int count, off64_t at) { REAL(pwritev64); UNLESS(handle_fails(handle), -1, handle, data, count, at); }
ssize_t copy_file_range(int from, off64_t *first, int to, off64_t *at, size_t size, unsigned flags) {
    REAL(copy_file_range);
    UNLESS(handle_fails(to), -1, from, first, to, at, size, flags);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) { REAL(sendfile); UNLESS(handle_fails(to), -1, to, from, at, size); }
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) { REAL(sendfile64); UNLESS(handle_fails(to), -1, to, from, at, size); }
int ftruncate(int handle, off_t size) { REAL(ftruncate); UNLESS(handle_fails(handle), -1, handle, size); }
int ftruncate64(int handle, off64_t size) { REAL(ftruncate64); UNLESS(handle_fails(handle), -1, handle, size); }
int fallocate(int handle, int mode, off_t at, off_t size) { REAL(fallocate); UNLESS(handle_fails(handle), -1, handle, mode, at, size); }
int fallocate64(int handle, int mode, off64_t at, off64_t size) { REAL(fallocate64); UNLESS(handle_fails(handle), -1, handle, mode, at, size); }
int posix_fallocate(int handle, off_t at, off_t size) { REAL(posix_fallocate); UNLESS(handle_fails(handle), errno, handle, at, size); }
int posix_fallocate64(int handle, off64_t at, off64_t size) { REAL(posix_fallocate64); UNLESS(handle_fails(handle), errno, handle, at, size); }
int fsync(int handle) { REAL(fsync); UNLESS(handle_fails(handle), -1, handle); }
int fdatasync(int handle) { REAL(fdatasync); UNLESS(handle_fails(handle), -1, handle); }
int fchmod(int handle, mode_t mode) { REAL(fchmod); UNLESS(handle_fails(handle), -1, handle, mode); }
int flock(int handle, int how) { REAL(flock); UNLESS(how != LOCK_UN && lock_fails(handle), -1, handle, how); }
#define LOCKS(command) ((command) == F_SETLK || (command) == F_SETLKW || (command) == F_OFD_SETLK || (command) == F_OFD_GETLK)
#define FCNTL(name)                                                                            \
    int name(int handle, int command, ...) {                                                   \
        REAL(name);                                                                            \
        va_list rest; va_start(rest, command); void *value = va_arg(rest, void *); va_end(rest); \
        UNLESS(LOCKS(command) && lock_fails(handle), -1, handle, command, value);              \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
int mkdir(const char *path, mode_t mode) { REAL(mkdir); UNLESS(change_fails(path), -1, path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { REAL(mkdirat); UNLESS(change_at_fails(folder, path), -1, folder, path, mode); }
int rmdir(const char *path) { REAL(rmdir); UNLESS(fails(path), -1, path); }
int unlink(const char *path) { REAL(unlink); UNLESS(fails(path), -1, path); }
int unlinkat(int folder, const char *path, int flags) { REAL(unlinkat); UNLESS(change_at_fails(folder, path), -1, folder, path, flags); }
int link(const char *from, const char *to) { REAL(link); UNLESS(change_fails(to), -1, from, to); }
int symlink(const char *from, const char *to) { REAL(symlink); UNLESS(change_fails(to), -1, from, to); }
int rename(const char *from, const char *to) { REAL(rename); UNLESS(change_fails(to), -1, from, to); }
int renameat(int from, const char *old, int to, const char *new) { REAL(renameat); UNLESS(change_at_fails(to, new), -1, from, old, to, new); }
