/* A slow or stalled file system: calls on paths below $SLOW_BELOW take longer, as the rules in the file $SLOW_RULES say.

   A rule is a line "CALL PART SECONDS MOST": a call on a path that contains PART waits so many seconds, at most MOST times
   in all processes together (-1: always; the file RULES.LINE.N notes the N-th wait). CALL is one of the names below, or "any".
   Negative seconds are an error number: the call fails with it. A wait ends early if the file of rules is removed. No signal interrupts it, as on a hard NFS mount. $SLOW_LOG: a file
   that gets a line "CALL PATH" for each call below the folder.

   $READ_ONLY: while this file exists, calls that change something below the folder fail with EROFS, also on open files, as
   on a file system that the kernel has made read-only after an error. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static void sleep_on(double until, const char *rules, pid_t parent) {
  while (now() < until && syscall(SYS_access, rules, F_OK) == 0 && (!parent || syscall(SYS_getppid) == parent)) {
    double left = until - now();
    struct timespec part = {0, left > 0.02 ? 20000000 : left > 0 ? (long)(left * 1e9) : 0};
    syscall(SYS_nanosleep, &part, NULL);
  }
}

static void wait_for(double seconds, const char *rules) {
  double until = now() + seconds;
  pid_t parent = getpid();
  pid_t child = seconds < 1 ? -1 : vfork();
  if (child == 0) {  /* its parent is in uninterruptible sleep (only SIGKILL ends it), as a process is that waits for NFS */
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sleep_on(until, rules, parent);
    _exit(0);
  }
  if (child > 0)
    waitpid(child, NULL, 0);
  else
    sleep_on(until, rules, 0);
}

static int take(const char *rules, int line, int most) {
  for (int number = 0; most < 0 || number < most; number++) {
    if (most < 0) return 1;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.%d.%d", rules, line, number);
    int file = syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (file >= 0) {
      syscall(SYS_close, file);
      return 1;
    }
  }
  return 0;
}

static int is_refused(void) {
  const char *read_only = getenv("READ_ONLY");
  if (!read_only || syscall(SYS_access, read_only, F_OK)) return 0;
  errno = EROFS;
  return 1;
}

/* Returns whether the call fails. */
static int meet(const char *call, const char *path, int changes) {
  const char *below = getenv("SLOW_BELOW"), *rules = getenv("SLOW_RULES"), *log = getenv("SLOW_LOG");
  if (!below || strncmp(path, below, strlen(below))) return 0;
  char text[4096];
  if (log) {
    int file = syscall(SYS_openat, AT_FDCWD, log, O_CREAT | O_APPEND | O_WRONLY, 0644);
    int size = snprintf(text, sizeof text, "%s %s\n", call, path);
    syscall(SYS_write, file, text, size);
    syscall(SYS_close, file);
  }
  int file = rules ? syscall(SYS_openat, AT_FDCWD, rules, O_RDONLY, 0) : -1;
  if (file < 0) return changes && is_refused();
  long size = syscall(SYS_read, file, text, sizeof text - 1);
  syscall(SYS_close, file);
  text[size > 0 ? size : 0] = 0;
  int number = 0;
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), number++) {
    char which[64], part[512];
    double seconds;
    int most;
    if (sscanf(line, "%63s %511s %lf %d", which, part, &seconds, &most) != 4) continue;
    if ((!strcmp(which, call) || !strcmp(which, "any")) && strstr(path, part) && take(rules, number, most)) {
      if (seconds < 0) {
        errno = -(int)seconds;
        return 1;
      }
      wait_for(seconds, rules);
    }
  }
  return changes && is_refused();
}

static int meet_at(const char *call, int folder, const char *path, int changes) {
  char base[PATH_MAX], link[64], whole[2 * PATH_MAX + 2];
  if (path && path[0] == '/') return meet(call, path, changes);
  if (folder == AT_FDCWD)
    strcpy(link, "/proc/self/cwd");
  else
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  long size = syscall(SYS_readlink, link, base, sizeof base - 1);
  base[size > 0 ? size : 0] = 0;
  snprintf(whole, sizeof whole, path && *path ? "%s/%s" : "%s", base, path);
  return meet(call, whole, changes);
}

#define WRITING (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(int, #name, const char *, int, ...); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    if (meet_at("open", AT_FDCWD, path, flags & WRITING)) return -1; \
    return real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    REAL(int, #name, int, const char *, int, ...); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    if (meet_at("open", folder, path, flags & WRITING)) return -1; \
    return real(folder, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

#define STAT(name, type) \
  int name(const char *path, struct type *found) { \
    REAL(int, #name, const char *, struct type *); \
    if (meet_at("stat", AT_FDCWD, path, 0)) return -1; \
    return real(path, found); \
  }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, type) \
  int name(int folder, const char *path, struct type *found, int flags) { \
    REAL(int, #name, int, const char *, struct type *, int); \
    if (meet_at("stat", folder, path, 0)) return -1; \
    return real(folder, path, found, flags); \
  }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

ssize_t read(int file, void *data, size_t size) {
  REAL(ssize_t, "read", int, void *, size_t);
  if (meet_at("read", file, NULL, 0)) return -1;
  return real(file, data, size);
}

ssize_t write(int file, const void *data, size_t size) {
  REAL(ssize_t, "write", int, const void *, size_t);
  if (meet_at("write", file, NULL, 1)) return -1;
  return real(file, data, size);
}

int fsync(int file) {
  REAL(int, "fsync", int);
  if (meet_at("fsync", file, NULL, 1)) return -1;
  return real(file);
}

int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  if (meet_at("rename", AT_FDCWD, to, 1)) return -1;
  return real(from, to);
}

int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  if (meet_at("unlink", AT_FDCWD, path, 1)) return -1;
  return real(path);
}

int unlinkat(int folder, const char *path, int flags) {
  REAL(int, "unlinkat", int, const char *, int);
  if (meet_at("unlink", folder, path, 1)) return -1;
  return real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
  REAL(int, "mkdir", const char *, mode_t);
  if (meet_at("mkdir", AT_FDCWD, path, 1)) return -1;
  return real(path, mode);
}

DIR *opendir(const char *path) {
  REAL(DIR *, "opendir", const char *);
  if (meet_at("list", AT_FDCWD, path, 0)) return NULL;
  return real(path);
}

DIR *fdopendir(int file) {
  REAL(DIR *, "fdopendir", int);
  if (meet_at("list", file, NULL, 0)) return NULL;
  return real(file);
}

int rmdir(const char *path) {
  REAL(int, "rmdir", const char *);
  if (meet_at("rmdir", AT_FDCWD, path, 1)) return -1;
  return real(path);
}

int link(const char *from, const char *to) {
  REAL(int, "link", const char *, const char *);
  if (meet_at("link", AT_FDCWD, to, 1)) return -1;
  return real(from, to);
}

int symlink(const char *from, const char *to) {
  REAL(int, "symlink", const char *, const char *);
  if (meet_at("link", AT_FDCWD, to, 1)) return -1;
  return real(from, to);
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
  REAL(int, "utimensat", int, const char *, const struct timespec *, int);
  if (meet_at("date", folder, path, 1)) return -1;
  return real(folder, path, times, flags);
}

int ftruncate64(int file, off64_t size) {
  REAL(int, "ftruncate64", int, off64_t);
  if (meet_at("truncate", file, NULL, 1)) return -1;
  return real(file, size);
}
