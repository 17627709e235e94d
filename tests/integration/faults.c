// Preload this library into a process: writes to files whose path contains FAULT_MATCH, or one of its parts between
// colons, fail with errno FAULT_ERRNO. If FAULT_WHEN is set, they fail only once that file exists.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(const char *path) {
    const char *match = getenv("FAULT_MATCH"), *when = getenv("FAULT_WHEN");
    char parts[1024], *rest;
    if (!match || !path || (when && access(when, F_OK))) return 0;
    snprintf(parts, sizeof parts, "%s", match);
    for (char *part = strtok_r(parts, ":", &rest); part; part = strtok_r(NULL, ":", &rest))
        if (strstr(path, part)) {
            errno = atoi(getenv("FAULT_ERRNO"));
            return 1;
        }
    return 0;
}

static int handle_fails(int handle) {
    char link[64], path[4096];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define OPEN(name)                                                                          \
    int name(const char *path, int flags, ...) {                                            \
        REAL(name);                                                                         \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails(path)) return -1;              \
        return real(path, flags, mode);                                                     \
    }
OPEN(open)
OPEN(open64)
int fflush(FILE *file) { REAL(fflush); return file && handle_fails(fileno(file)) ? EOF : real(file); }

ssize_t write(int handle, const void *data, size_t size) { REAL(write); return handle_fails(handle) ? -1 : real(handle, data, size); }
ssize_t pwrite(int handle, const void *data, size_t size, off_t at) { REAL(pwrite); return handle_fails(handle) ? -1 : real(handle, data, size, at); }
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) { REAL(pwrite64); return handle_fails(handle) ? -1 : real(handle, data, size, at); }
int ftruncate64(int handle, off64_t size) { REAL(ftruncate64); return handle_fails(handle) ? -1 : real(handle, size); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return fails(path) ? -1 : real(path, mode); }
int unlink(const char *path) { REAL(unlink); return fails(path) ? -1 : real(path); }
int rename(const char *from, const char *to) { REAL(rename); return fails(to) ? -1 : real(from, to); }
