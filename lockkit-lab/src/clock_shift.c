/* Moves the wall clock of one process by the nanoseconds that stand in the file
 * named by LOCKKIT_LAB_CLOCK; preloaded into a server. Clocks that count from
 * the start of the machine stay what they are. Must not allocate: a server's
 * allocator may itself ask for the time while it starts. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("LOCKKIT_LAB_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        shift = page;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, id, now);
    if (failed || !shift || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t by = *shift;
    int64_t nanos = now->tv_nsec + by % SECOND;
    now->tv_sec += by / SECOND + (nanos >= SECOND) - (nanos < 0);
    now->tv_nsec = (nanos + SECOND) % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out)
        *out = exact.tv_sec;
    return exact.tv_sec;
}
