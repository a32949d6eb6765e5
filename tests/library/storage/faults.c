/* Preloaded into a process, it sits between that process and the C library: it counts what changes files below one
 * folder, ends the process before the n-th change, and writes down what a power cut would lose. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static int records = -1;
static atomic_long changes;
static long last = -1;

/* From now on changes below the folder count; the process ends before the `n`-th, never for 0. */
void faults_begin(const char *below, long n, const char *log) {
  records = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
  changes = 0;
  last = n;
  strncpy(folder, below, sizeof folder - 1);
}

long faults_count(void) { return changes; }

static int within(const char *path) {
  size_t length = strlen(folder);
  return length && path && !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

static int fd_within(int fd) {
  char link[64], path[PATH_MAX];
  if (!folder[0] || fd == records) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return within(path);
}

/* Set in the environment: any process that opens or renames a file below this folder for writing writes it down. */
static int watched(const char *path) {
  const char *below = getenv("PROTA_WATCHED");
  return below && path && !strncmp(path, below, strlen(below));
}

static void note(const char *what, const char *path) {
  char line[PATH_MAX + 64];
  int length = snprintf(line, sizeof line, "%s %s\n", what, path);
  static int (*real_open)(const char *, int, ...);
  static ssize_t (*real_write)(int, const void *, size_t);
  if (!real_open) real_open = dlsym(RTLD_NEXT, "open");
  if (!real_write) real_write = dlsym(RTLD_NEXT, "write");
  int fd = real_open(getenv("PROTA_WATCHED_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (fd < 0 || real_write(fd, line, length) != length) _exit(99);
  close(fd);
}

static void count(void) {
  if (atomic_fetch_add(&changes, 1) + 1 == last) _exit(137);
}

static void record(char what, const char *path, int fd) {
  char line[PATH_MAX + 64];
  struct stat found = {0};
  if (fd >= 0) fstat(fd, &found);
  else stat(path, &found);
  int length = snprintf(line, sizeof line, "%c %llu %s\n", what, (unsigned long long)found.st_ino, path ? path : "");
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  if (real(records, line, length) != length) _exit(99);
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* W: a file got other content; S: a file or folder was flushed; E: a folder got an entry; R: it lost one. Renames by
 * system calls that do not go through the C library are not seen: the reader of the log looks for the inode. */
#define WRITES(fd, call) \
  if (!fd_within(fd)) return call; \
  count(); \
  __typeof__(call) result = call; \
  record('W', NULL, fd); \
  return result

ssize_t write(int fd, const void *data, size_t size) { REAL(write); WRITES(fd, real(fd, data, size)); }
ssize_t writev(int fd, const struct iovec *parts, int number) { REAL(writev); WRITES(fd, real(fd, parts, number)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  REAL(pwrite64);
  WRITES(fd, real(fd, data, size, at));
}
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); WRITES(fd, real(fd, size)); }
ssize_t copy_file_range(int in, off64_t *from, int fd, off64_t *to, size_t size, unsigned flags) {
  REAL(copy_file_range);
  WRITES(fd, real(in, from, fd, to, size, flags));
}

#define SYNCS(fd, call) \
  if (!fd_within(fd)) return call; \
  count(); \
  int result = call; \
  if (!result) record('S', NULL, fd); \
  return result

int fsync(int fd) { REAL(fsync); SYNCS(fd, real(fd)); }
int fdatasync(int fd) { REAL(fdatasync); SYNCS(fd, real(fd)); }

static int opened(int fd, int flags, const char *path) {
  if (fd >= 0 && (flags & O_CREAT) && within(path)) record('E', path, fd);
  return fd;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & O_CREAT) { \
    va_list rest; \
    va_start(rest, flags); \
    mode = va_arg(rest, mode_t); \
    va_end(rest); \
  } \
  if (((flags) & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY && watched(path)) note("open", path); \
  int is_new = ((flags) & O_CREAT) && within(path) && access(path, F_OK); \
  if (is_new) count()

int open(const char *path, int flags, ...) {
  REAL(open);
  MODE(flags);
  return opened(real(path, flags, mode), is_new ? flags : 0, path);
}
int open64(const char *path, int flags, ...) {
  REAL(open64);
  MODE(flags);
  return opened(real(path, flags, mode), is_new ? flags : 0, path);
}
int openat64(int at, const char *path, int flags, ...) {
  REAL(openat64);
  MODE(flags);
  return opened(real(at, path, flags, mode), is_new ? flags : 0, path);
}

#define NAMES(from, to, replaces, call) \
  if (watched(to)) note("name", to); \
  if (!within(to)) return call; \
  count(); \
  int was_there = replaces && !access(to, F_OK); \
  int result = call; \
  if (result) return result; \
  if (from) record('R', from, -1); \
  if (!was_there) record('E', to, -1); \
  return result

int rename(const char *from, const char *to) { REAL(rename); NAMES(from, to, 1, real(from, to)); }
int link(const char *from, const char *to) { REAL(link); NAMES((char *)NULL, to, 0, real(from, to)); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
  REAL(linkat);
  NAMES((char *)NULL, to, 0, real(a, from, b, to, flags));
}
int mkdir(const char *path, mode_t mode) { REAL(mkdir); NAMES((char *)NULL, path, 0, real(path, mode)); }

int unlink(const char *path) {
  REAL(unlink);
  if (watched(path)) note("unlink", path);
  if (!within(path)) return real(path);
  count();
  int result = real(path);
  if (!result) record('R', path, -1);
  return result;
}
